// The log of a task: followed, searched, saved.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { useSeen } from "../lib/api.js";
import { follow, wholeLog } from "../lib/follow.js";
import { bytes, plain } from "../lib/format.js";
import { Lines, useLines } from "../lib/lines.js";
import { Problem, Search, useParam } from "../lib/parts.js";
import { save } from "../lib/save.js";

/** Most characters that are shown, and how many bytes before the end a log is begun at first. */
const KEPT = 400_000;
const FIRST = 50_000;

/** The end of a log, followed. What no longer fits is dropped, and the page says how much. */
export function Logs({ alloc, task }) {
  const [kind, setKind] = useParam("output", "stdout");
  const [back, setBack] = useState(FIRST);
  const { log, dropped, add, clear } = useLines(KEPT);
  const [before, setBefore] = useState(0);
  const [filter, setFilter] = useParam("find");
  const [wraps, setWraps] = useState(true);
  const [error, setError] = useState(null);
  const [managed, setManaged] = useState({ words: "", at: alloc.ID });
  const seen = useSeen();
  const kinds = kind === "both" ? ["stdout", "stderr"] : [kind];
  useEffect(() => {
    // Whoever comes back to the tab sees the end as it is then.
    if (!seen) return undefined;
    const stop = new AbortController();
    clear(); setBefore(0); setError(null); setManaged({ words: "", at: alloc.ID });
    const run = async (which) => {
      // Of two outputs whole lines are joined: none is broken by the other.
      let [rest, begun] = ["", false];
      const text = (part, at) => {
        if (!begun) setBefore((n) => n + at);
        begun = true;
        const all = rest + part;
        const end = kind === "both" ? all.lastIndexOf("\n") + 1 : all.length;
        rest = all.slice(end);
        add(all.slice(0, end));
      };
      await follow({ alloc, task, kind: which, back, signal: stop.signal, text,
        managed: (words, at) => setManaged({ words, at }) });
      if (!stop.signal.aborted) add(rest);
    };
    kinds.forEach((which) => run(which).catch((e) => { if (!stop.signal.aborted) setError(e); }));
    return () => stop.abort();
  }, [alloc.ID, task, kind, back, seen]);
  const keep = (which) => save(wholeLog(managed.at, task, which), `${task}.${which}.log`).catch(setError);
  const left = before + dropped;
  return html`<div class="tools"><select aria-label="Output" value=${kind} onChange=${(e) => setKind(e.target.value)}>
    <option>stdout</option><option>stderr</option><option>both</option></select>
    <${Search} value=${filter} onInput=${setFilter} />
    <label><input type="checkbox" data-key="ww" data-key-title="Wrap lines" checked=${wraps}
      onChange=${(e) => setWraps(e.target.checked)} /> Wrap lines</label>
    ${kinds.map((which) => html`<button key=${which} onClick=${() => keep(which)}>Download ${which}</button>`)}</div>
    ${error && html`<${Problem} error=${error} />`}
    ${managed.words && html`<p class="warn" role="status">${plain(managed.words)}</p>`}
    ${left > 0 && html`<p class="soft">${bytes(left)} of earlier output not shown.
      ${back < KEPT && html` <button onClick=${() => setBack(KEPT)}>Show more of it</button>`} Download has all that is
      kept.</p>`}
    <${Lines} log=${log} filter=${filter} wraps=${wraps} none="No output." />`;
}
