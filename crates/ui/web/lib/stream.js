// One event stream for all tabs of a browser that show the same token. A browser opens six connections to an agent:
// with one for each tab, six tabs would stop each other.
import { token } from "./token.js";
import { sharedName } from "./topics.js";

/** Events are passed on together, this often. */
const GATHER_MS = 200;
/** How long a tab keeps the stream without a listener. */
const LINGER_MS = 2000;
/** A stream shows every thirty seconds that it lives: one that says nothing for so long does not. */
const SILENT_MS = 35_000;
/** Answers that another try does not change. */
const REFUSED = [400, 401, 403, 404, 501];
const PATH = "/v1/event/stream?topic=*&namespace=*&payload=none";

/**
 * State of the stream that this tab hears: `""` = not known yet, `open`, `silent` = it says nothing any more, or was
 * not even opened in that time, or `refused` = this token may not.
 */
let shared = null;

class Shared {
  constructor(secret) {
    this.secret = secret;
    this.name = sharedName(secret);
    this.listeners = new Set();
    this.state = "";
    this.channel = new BroadcastChannel(this.name);
    this.channel.onmessage = ({ data }) => this.hear(data);
    this.channel.postMessage({ asks: true });
    this.stop = new AbortController();
    this.lead();
  }

  /** Leads as soon as no other tab does. Where the browser has no locks, each tab leads for itself. */
  async lead() {
    const { signal } = this.stop;
    const whole = () => this.follow(signal);
    try {
      await (navigator.locks ? navigator.locks.request(this.name, { signal }, whole) : whole());
    } catch { /* Closed before it was its turn. */ }
  }

  async follow(signal) {
    this.leads = true;
    for (let tries = 0; !signal.aborted; tries += 1) {
      try {
        // An agent that stands still takes the connection and answers nothing.
        const silent = setTimeout(() => this.tell({ state: "silent" }), SILENT_MS);
        const reply = await fetch(PATH, { signal, headers: this.secret ? { "X-Nomad-Token": this.secret } : {} })
          .finally(() => clearTimeout(silent));
        if (REFUSED.includes(reply.status)) return void this.tell({ state: "refused" });
        if (reply.ok) {
          tries = 0;
          // What happened before it was open was not heard.
          this.tell({ state: "open", topics: ["*"] });
          await this.pass(reply.body.pipeThrough(new TextDecoderStream()).getReader());
        }
      } catch { /* The agent is away; pages that ask it say so. */ }
      if (!signal.aborted) {
        this.tell({ topics: ["*"] });
        await new Promise((done) => setTimeout(done, Math.min(15_000, 500 * 2 ** tries) * (0.7 + 0.6 * Math.random())));
      }
    }
    return undefined;
  }

  /** Passes on which topics have had events. */
  async pass(reader) {
    let rest = "";
    let topics = new Set();
    let timer = 0;
    for (;;) {
      const silent = setTimeout(() => {
        this.tell({ state: "silent" });
        reader.cancel();
      }, SILENT_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(silent));
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      lines.filter(Boolean).forEach((line) =>
        (JSON.parse(line).Events ?? []).forEach((event) => topics.add(event.Topic)));
      if (topics.size && !timer) {
        timer = setTimeout(() => { timer = 0; this.tell({ topics: [...topics] }); topics = new Set(); }, GATHER_MS);
      }
    }
  }

  tell(news) {
    this.channel.postMessage(news);
    this.hear(news);
  }

  hear({ asks, state, topics }) {
    if (asks && this.leads && this.state) this.channel.postMessage({ state: this.state });
    if (state) this.state = state;
    if (state || topics) this.listeners.forEach((listener) => listener(topics ?? [], this.state));
  }

  close() {
    this.stop.abort();
    this.channel.close();
    shared = null;
  }
}

/**
 * Calls `heard(topics, state)` whenever there is news: topics with events, `*` for all, and whether there is a stream.
 * Returns what ends it. Soon after the last of its listeners a tab holds no stream.
 */
export function listen(heard) {
  if (shared && shared.secret !== token()) shared.close();
  shared ??= new Shared(token());
  const own = shared;
  own.listeners.add(heard);
  if (own.state) heard([], own.state);
  return () => {
    own.listeners.delete(heard);
    // The next page listens in a moment.
    setTimeout(() => { if (!own.listeners.size && shared === own) own.close(); }, LINGER_MS);
  };
}
