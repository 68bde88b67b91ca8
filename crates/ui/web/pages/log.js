// The log of a task: followed, searched, saved.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { ask } from "../lib/api.js";
import { bare, coloured, filterOf } from "../lib/ansi.js";
import { bytes, plain } from "../lib/format.js";
import { Problem, Search } from "../lib/parts.js";
import { save } from "../lib/save.js";

const KEPT = 400_000;

const logsOf = (alloc, task, kind) =>
  `/v1/client/fs/logs/${alloc}?task=${encodeURIComponent(task)}&type=${kind}&plain=true`;

/** The end of a log, followed. What no longer fits is dropped, and the page says how much. */
export function Logs({ alloc, task }) {
  const [kind, setKind] = useState("stdout");
  const [text, setText] = useState("");
  const [dropped, setDropped] = useState(0);
  const [filter, setFilter] = useState("");
  const [wraps, setWraps] = useState(true);
  const [error, setError] = useState(null);
  const box = useRef(null);
  const below = useRef(true);
  useEffect(() => {
    const stop = new AbortController();
    setText(""); setDropped(0); setError(null);
    const follow = async (which) => {
      const reply = await ask(`${logsOf(alloc, task, which)}&follow=true&origin=end&offset=50000`,
        { signal: stop.signal });
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      // Of two outputs whole lines are joined: none is broken by the other.
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (stop.signal.aborted) return;
        const all = rest + (value ?? "");
        const end = done || kind !== "both" ? all.length : all.lastIndexOf("\n") + 1;
        rest = all.slice(end);
        if (end > 0) {
          setText((old) => {
            const next = old + all.slice(0, end);
            if (next.length > KEPT) setDropped((n) => n + next.length - KEPT);
            return next.slice(-KEPT);
          });
        }
        if (done) return;
      }
    };
    (kind === "both" ? ["stdout", "stderr"] : [kind]).forEach((which) =>
      follow(which).catch((e) => { if (!stop.signal.aborted) setError(e); }));
    return () => stop.abort();
  }, [alloc, task, kind]);
  // Whoever has scrolled up reads on there.
  useEffect(() => { if (box.current && below.current) box.current.scrollTop = box.current.scrollHeight; }, [text]);
  const scrolled = ({ target }) => {
    below.current = target.scrollHeight - target.scrollTop - target.clientHeight < 40;
  };
  const { fits, wrong } = filterOf(filter);
  const shown = filter ? text.split("\n").filter((line) => fits(bare(line))).join("\n") : text;
  const keep = (which) => save(logsOf(alloc, task, which), `${task}.${which}.log`).catch(setError);
  return html`<div class="tools"><select aria-label="Output" value=${kind} onChange=${(e) => setKind(e.target.value)}>
    <option>stdout</option><option>stderr</option><option>both</option></select>
    <${Search} value=${filter} onInput=${setFilter} />
    <label><input type="checkbox" data-key="ww" data-key-title="Wrap lines" checked=${wraps} onChange=${(e) => setWraps(e.target.checked)} /> Wrap lines</label>
    ${(kind === "both" ? ["stdout", "stderr"] : [kind]).map((which) => html`<button key=${which}
      onClick=${() => keep(which)}>Download ${which}</button>`)}</div>
    ${wrong && html`<p class="warn" role="status">${plain(`The expression cannot be read: ${wrong}`)}</p>`}
    ${error && html`<${Problem} error=${error} />`}
    ${dropped > 0 && html`<p class="soft">${bytes(dropped)} of earlier output dropped here; the node keeps it</p>`}
    <div class="box"><pre class=${wraps ? "log" : "log unwrapped"} ref=${box} tabindex="0" aria-label="Log"
      data-key="l" data-key-title="Read the log"
      onScroll=${scrolled}>${coloured(shown).map((part) => (part.name ? html`<span class=${part.name}>${
      plain(part.text)}</span>` : plain(part.text)))}${!shown && "No output."}</pre></div>`;
}
