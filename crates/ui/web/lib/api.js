// Requests to the agent. The token is in sessionStorage and goes into a header, never into an address.
import { useEffect, useState } from "../vendor/hooks.js";

const KEY = "drover-token";
export const token = () => sessionStorage.getItem(KEY) ?? "";
export const setToken = (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY));

/** What the server refused: its own sentence and the status. */
export class Refused extends Error {
  constructor(status, text) { super(text || `the server answered ${status}`); this.status = status; }
}

export async function ask(path, { method = "GET", body, signal } = {}) {
  const headers = token() ? { "X-Nomad-Token": token() } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const reply = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  if (!reply.ok) throw new Refused(reply.status, await reply.text());
  return reply;
}

export const read = async (path, signal) => (await ask(path, { signal })).json();
export const write = async (path, body, method = "PUT") => {
  const text = await (await ask(path, { method, body })).text();
  return text ? JSON.parse(text) : null;
};

const pause = (ms, signal) => new Promise((done) => {
  const timer = setTimeout(done, ms);
  signal.addEventListener("abort", () => { clearTimeout(timer); done(); });
});

/**
 * Reads these paths and keeps them fresh with one blocking query, on the first. A hidden tab asks nothing; leaving
 * the page ends the request. `stale` says since when there has been no answer. `few` is a query that makes the first
 * answer short: its rows are shown while the whole list is on its way.
 */
export function useLive(paths, few = "") {
  const [got, set] = useState({ data: null, error: null, stale: 0 });
  const key = paths.join("\n");
  useEffect(() => {
    let stop = null;
    const follow = async (signal) => {
      let index = 0;
      let tries = 0;
      while (!signal.aborted) {
        try {
          const [first, ...others] = paths;
          if (few && !index && !tries) {
            const rows = await read(first + few, signal);
            if (!signal.aborted) set((old) => (old.data ? old : { data: [rows], error: null, stale: 0 }));
          }
          const wait = index ? `${first.includes("?") ? "&" : "?"}index=${index}&wait=60s` : "";
          const reply = await ask(first + wait, { signal });
          const seen = Number(reply.headers.get("X-Nomad-Index"));
          const data = [await reply.json(), ...await Promise.all(others.map((path) => read(path, signal)))];
          if (signal.aborted) return;
          set({ data, error: null, stale: 0 });
          tries = 0;
          // At most one request a second, also where everything changes all the time.
          index = seen;
          await pause(index ? 1000 : 3000, signal);
        } catch (error) {
          if (signal.aborted) return;
          set((old) => ({ data: old.data, error, stale: old.stale || Date.now() }));
          if (error instanceof Refused && error.status < 500) return;
          index = 0;
          tries += 1;
          await pause(Math.min(15000, 500 * 2 ** tries) * (0.7 + 0.6 * Math.random()), signal);
        }
      }
    };
    const start = () => { if (!stop) { stop = new AbortController(); follow(stop.signal); } };
    const end = () => { stop?.abort(); stop = null; };
    const seen = () => (document.hidden ? end() : start());
    set({ data: null, error: null, stale: 0 });
    seen();
    document.addEventListener("visibilitychange", seen);
    return () => { document.removeEventListener("visibilitychange", seen); end(); };
  }, [key]);
  return got;
}
