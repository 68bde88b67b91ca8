// The log of an agent, as it is written.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { ask } from "../lib/api.js";
import { filterOf } from "../lib/ansi.js";
import { plain } from "../lib/format.js";
import { nodeHref } from "../lib/routes.js";
import { Cli, Problem, Search, Title, useParam } from "../lib/parts.js";

/** Most characters that are shown. */
const KEPT = 200_000;
const LEVELS = ["error", "warn", "info", "debug", "trace"];

/** `part` is `node` or `server`; `id` names it. */
export function Monitor({ part, id }) {
  const [level, setLevel] = useParam("level", "info");
  const [text, setText] = useState("");
  const [filter, setFilter] = useParam("find");
  const [error, setError] = useState(null);
  const box = useRef(null);
  const query = new URLSearchParams({ [`${part}_id`]: id, log_level: level, plain: true });
  useEffect(() => {
    const stop = new AbortController();
    setText(""); setError(null);
    const run = async () => {
      const reply = await ask(`/v1/agent/monitor?${query}`, { signal: stop.signal });
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done || stop.signal.aborted) return;
        setText((old) => (old + value).slice(-KEPT));
      }
    };
    run().catch((e) => { if (!stop.signal.aborted) setError(e); });
    return () => stop.abort();
  }, [part, id, level]);
  useEffect(() => { if (box.current) box.current.scrollTop = box.current.scrollHeight; }, [text]);
  const { fits, wrong } = filterOf(filter);
  const shown = filter ? text.split("\n").filter(fits).join("\n") : text;
  return html`<${Title}>Log of ${part} ${plain(part === "node" ? id.slice(0, 8) : id)}<//><div class="tools">
    <select aria-label="Level" value=${level} onChange=${(e) => setLevel(e.target.value)}>${LEVELS.map((each) => html`
    <option key=${each}>${each}</option>`)}</select><${Search} value=${filter} onInput=${setFilter} />
    <a rel="up" href=${part === "node" ? nodeHref(id) : "/ui/servers"}>${part === "node" ? "The node" : "All servers"}</a></div>
    ${wrong && html`<p class="warn" role="status">${plain(`The expression cannot be read: ${wrong}`)}</p>`}
    ${error && html`<${Problem} error=${error} />`}
    <div class="box"><pre class="log" ref=${box} tabindex="0" aria-label="Log">${plain(shown) || "Nothing yet."}</pre></div>
    <${Cli} line=${`drover monitor -${part}-id ${id} -log-level ${level}`} raw=${`/v1/agent/monitor?${query}`} />`;
}
