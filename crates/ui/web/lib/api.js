// Requests to the agent.
import { useEffect, useState } from "../vendor/hooks.js";
import { listen } from "./stream.js";
import { token } from "./token.js";
import { topicsOf } from "./topics.js";

/** What the server refused: its own sentence and the status. */
export class Refused extends Error {
  constructor(status, text) { super(text || `the server answered ${status}`); this.status = status; }
}

const AWAY = "The agent does not answer. Does it run, and does this machine reach it?";

/** Statuses of answers that another try may change. */
const LATER = [408, 429];
/** Longest wait that an answer may ask for, in milliseconds, and the wait where it asks for none. */
const LONGEST_MS = 60_000;
const USUAL_MS = 1000;
/** How often a request is repeated before its answer is told. */
const REPEATS = 3;

/** Whether the agent was too busy for what it refused. */
export const busy = (error) => LATER.includes(error?.status);

/** Whether another try cannot change this refusal. */
export const final = (error) => error?.status > 0 && error.status < 500 && !busy(error);

/** After how many milliseconds the same request is worth another try; null where the answer is the last word. */
function laterIn(reply) {
  if (!LATER.includes(reply.status)) return null;
  const asked = 1000 * Number(reply.headers.get("Retry-After"));
  return asked > 0 ? Math.min(LONGEST_MS, asked) : USUAL_MS;
}

/**
 * Asks, and asks again a few times while the agent is only too busy. Whoever has other things to try then says
 * `patient: false` and hears it at once.
 */
export async function ask(path, { signal, patient = true, ...request } = {}) {
  for (let repeats = 0; ; repeats += 1) {
    const reply = await once(path, { signal, ...request });
    if (reply.ok) return reply;
    const wait = laterIn(reply);
    if (wait === null || !patient || repeats === REPEATS) throw new Refused(reply.status, await reply.text());
    await pause(wait, signal);
    signal?.throwIfAborted();
  }
}

async function once(path, { method = "GET", body, signal }) {
  const headers = token() ? { "X-Nomad-Token": token() } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const sent = fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  return sent.catch((error) => {
    throw signal?.aborted ? error : new Error(AWAY);
  });
}

export const read = async (path, signal) => (await ask(path, { signal })).json();
export const write = async (path, body, method = "PUT") => {
  const text = await (await ask(path, { method, body })).text();
  return text ? JSON.parse(text) : null;
};

const pause = (ms, signal) => new Promise((done) => {
  const end = () => {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
    done();
  };
  const timer = setTimeout(end, ms);
  signal?.addEventListener("abort", end);
});

/** Whether the tab is seen. A hidden one asks for nothing. */
export function useSeen() {
  const [seen, set] = useState(!document.hidden);
  useEffect(() => {
    const changed = () => set(!document.hidden);
    document.addEventListener("visibilitychange", changed);
    return () => document.removeEventListener("visibilitychange", changed);
  }, []);
  return seen;
}

/** A state that `follow` keeps while the tab is seen; leaving the page ends all requests. */
function useWhileSeen(key, follow) {
  const [got, set] = useState({ data: null, error: null, stale: 0 });
  const seen = useSeen();
  useEffect(() => set({ data: null, error: null, stale: 0 }), [key]);
  useEffect(() => {
    if (!seen) return undefined;
    const stop = new AbortController();
    follow(stop.signal, set);
    return () => stop.abort();
  }, [key, seen]);
  return got;
}

/**
 * What a page waits with until there is news of these topics; null where no event tells of them. `silent` is called
 * when the stream should have shown that it lives, and has not.
 */
function newsOf(topics, signal, silent) {
  if (!topics.length) return null;
  let [news, state, woken] = [false, "", () => {}];
  const end = listen((heard, now) => {
    if (now === "silent" && state !== "silent") silent();
    state = now;
    if (now === "refused" || heard.some((topic) => topic === "*" || topics.includes(topic))) { news = true; woken(); }
  });
  signal.addEventListener("abort", () => { end(); woken(); });
  return {
    refused: () => state === "refused",
    forget: () => { news = false; },
    wait: async () => { if (!news && !signal.aborted) await new Promise((done) => { woken = done; }); },
  };
}

/**
 * Reads these paths and keeps them fresh: when the event stream tells of a change, or with one blocking query on the
 * first where it cannot. `stale` says since when there has been no answer. `few` are the same paths with pages: when
 * there is more than their rows, these are shown, as `partial`, while the whole lists are on their way.
 */
export function useLive(paths, few = paths) {
  return useWhileSeen(paths.join("\n"), async (signal, set) => {
    const late = () => set((old) => ({ ...old, error: old.error ?? new Error(AWAY), stale: old.stale || Date.now() }));
    const news = newsOf(topicsOf(paths), signal, late);
    let index = 0;
    let tries = 0;
    let short = few !== paths;
    while (!signal.aborted) {
      try {
        const [first, ...others] = short ? few : paths;
        const blocks = !news || news.refused();
        const wait = blocks && index ? `${first.includes("?") ? "&" : "?"}index=${index}&wait=60s` : "";
        news?.forget();
        const begun = ask(first + wait, { signal });
        // The others are read when what is waited for has changed; without a wait all are asked for at once.
        if (wait) await begun;
        const replies = await Promise.all([begun, ...others.map((path) => ask(path, { signal }))]);
        const [reply] = replies;
        const data = await Promise.all(replies.map((each) => each.json()));
        if (signal.aborted) return;
        const partial = short && replies.some((each) => each.headers.get("X-Nomad-NextToken"));
        // Rows of a page never take the place of the whole list, which a tab has that was hidden meanwhile.
        set((old) => (partial && old.data ? old : { data, error: null, stale: 0, partial }));
        short = false;
        tries = 0;
        if (partial) continue;
        index = Number(reply.headers.get("X-Nomad-Index"));
        // At most one request a second, also where everything changes all the time.
        const next = Date.now() + Math.max(index ? 0 : 3000, 1000 * paths.length);
        if (news && !news.refused()) await news.wait();
        await pause(next - Date.now(), signal);
      } catch (error) {
        if (signal.aborted) return;
        set((old) => ({ data: old.data, error, stale: old.stale || Date.now() }));
        if (final(error)) return;
        index = 0;
        tries += 1;
        await pause(Math.min(15000, 500 * 2 ** tries) * (0.7 + 0.6 * Math.random()), signal);
      }
    }
  });
}

/** Reads a path again and again: for what has neither events nor an index to wait for. */
export function useEvery(path, everyMs) {
  return useWhileSeen(path, async (signal, set) => {
    while (!signal.aborted) {
      try {
        const data = [await read(path, signal)];
        if (!signal.aborted) set({ data, error: null, stale: 0 });
      } catch (error) {
        if (signal.aborted) return;
        set((old) => ({ data: old.data, error, stale: old.stale || Date.now() }));
        if (final(error)) return;
      }
      await pause(everyMs, signal);
    }
  });
}
