// The log of an agent, as it is written.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { ask, useSeen } from "../lib/api.js";
import { plain } from "../lib/format.js";
import { Lines, useLines } from "../lib/lines.js";
import { nodeHref } from "../lib/routes.js";
import { Cli, Problem, Search, Title, useParam } from "../lib/parts.js";

/** Most characters that are shown. */
const KEPT = 200_000;
const LEVELS = ["error", "warn", "info", "debug", "trace"];

/** `part` is `node` or `server`; `id` names it. */
export function Monitor({ part, id }) {
  const [level, setLevel] = useParam("level", "info");
  const { log, add, clear } = useLines(KEPT);
  const [filter, setFilter] = useParam("find");
  const [error, setError] = useState(null);
  const seen = useSeen();
  const path = `/v1/agent/monitor?${new URLSearchParams({ [`${part}_id`]: id, log_level: level, plain: true })}`;
  useEffect(() => {
    if (!seen) return undefined;
    const stop = new AbortController();
    clear(); setError(null);
    const run = async () => {
      const reply = await ask(path, { signal: stop.signal });
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (stop.signal.aborted) return;
        if (done) throw new Error("The agent has ended the stream: load the page again to follow its log.");
        add(value);
      }
    };
    run().catch((e) => { if (!stop.signal.aborted) setError(e); });
    return () => stop.abort();
  }, [path, seen]);
  return html`<${Title}>Log of ${part} ${plain(part === "node" ? id.slice(0, 8) : id)}<//><div class="tools">
    <select aria-label="Level" value=${level} onChange=${(e) => setLevel(e.target.value)}>${LEVELS.map((each) => html`
    <option key=${each}>${each}</option>`)}</select><${Search} value=${filter} onInput=${setFilter} />
    <a rel="up" href=${part === "node" ? nodeHref(id) : "/ui/servers"}>${part === "node" ? "The node" :
    "All servers"}</a></div>
    ${error && html`<${Problem} error=${error} />`}
    <${Lines} log=${log} filter=${filter} none="Nothing yet." />
    <${Cli} line=${`drover monitor -${part}-id ${id} -log-level ${level}`} raw=${path} />`;
}
