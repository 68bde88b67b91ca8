// The log of a task: followed, searched, saved.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { bare, coloured, filterOf } from "../lib/ansi.js";
import { follow, wholeLog } from "../lib/follow.js";
import { bytes, plain } from "../lib/format.js";
import { Problem, Search, useParam } from "../lib/parts.js";
import { EMPTY, grown, whole } from "../lib/logtext.js";
import { remembered } from "../lib/remembered.js";
import { save } from "../lib/save.js";

/** Most characters that are shown, and how many bytes before the end a log is begun at first. */
const KEPT = 400_000;
const FIRST = 50_000;
/** What comes is shown together, this often. */
const GATHER_MS = 150;

/** A block as it is drawn: the same one is not drawn again. */
const drawn = remembered((block) => html`<span>${coloured(block.text, block.style).map((part) => (part.name ? html`<span
  class=${part.name}>${plain(part.text)}</span>` : plain(part.text)))}</span>`);

/** The end of a log, followed. What no longer fits is dropped, and the page says how much. */
export function Logs({ alloc, task }) {
  const [kind, setKind] = useParam("output", "stdout");
  const [back, setBack] = useState(FIRST);
  const [log, setLog] = useState(EMPTY);
  const [before, setBefore] = useState(0);
  const [filter, setFilter] = useParam("find");
  const [wraps, setWraps] = useState(true);
  const [error, setError] = useState(null);
  const [managed, setManaged] = useState({ words: "", at: alloc.ID });
  const [seen, see] = useState(!document.hidden);
  const box = useRef(null);
  const below = useRef(true);
  useEffect(() => {
    const changed = () => see(!document.hidden);
    document.addEventListener("visibilitychange", changed);
    return () => document.removeEventListener("visibilitychange", changed);
  }, []);
  useEffect(() => {
    // A hidden tab asks for nothing; whoever comes back sees the end as it is then.
    if (!seen) return undefined;
    const stop = new AbortController();
    setLog(EMPTY); setBefore(0); setError(null); setManaged({ words: "", at: alloc.ID });
    let [come, timer] = ["", 0];
    const show = () => {
      timer = 0;
      const more = come;
      come = "";
      setLog((old) => {
        const next = grown(old, more, KEPT);
        if (next.dropped) setBefore((n) => n + next.dropped);
        return next.log;
      });
    };
    const kinds = kind === "both" ? ["stdout", "stderr"] : [kind];
    const run = async (which) => {
      // Of two outputs whole lines are joined: none is broken by the other.
      let [rest, begun] = ["", false];
      const add = (all) => {
        come += all;
        if (come && !timer) timer = setTimeout(show, GATHER_MS);
      };
      await follow({ alloc, task, kind: which, back, signal: stop.signal,
        managed: (words, at) => setManaged({ words, at }),
        text: (part, at) => {
          if (!begun) setBefore((n) => n + at);
          begun = true;
          const all = rest + part;
          const end = kind === "both" ? all.lastIndexOf("\n") + 1 : all.length;
          rest = all.slice(end);
          add(all.slice(0, end));
        } });
      add(rest);
    };
    kinds.forEach((which) => run(which).catch((e) => { if (!stop.signal.aborted) setError(e); }));
    return () => { stop.abort(); clearTimeout(timer); };
  }, [alloc.ID, task, kind, back, seen]);
  // Whoever has scrolled up reads on there.
  useEffect(() => { if (box.current && below.current) box.current.scrollTop = box.current.scrollHeight; }, [log]);
  const scrolled = ({ target }) => {
    below.current = target.scrollHeight - target.scrollTop - target.clientHeight < 40;
  };
  const { fits, wrong } = filterOf(filter);
  const found = filter && whole(log).split("\n").filter((line) => fits(bare(line))).join("\n");
  const shown = filter ? [{ text: found }].filter(({ text }) => text) : log.blocks;
  const keep = (which) => save(wholeLog(managed.at, task, which), `${task}.${which}.log`).catch(setError);
  return html`<div class="tools"><select aria-label="Output" value=${kind} onChange=${(e) => setKind(e.target.value)}>
    <option>stdout</option><option>stderr</option><option>both</option></select>
    <${Search} value=${filter} onInput=${setFilter} />
    <label><input type="checkbox" data-key="ww" data-key-title="Wrap lines" checked=${wraps} onChange=${(e) => setWraps(e.target.checked)} /> Wrap lines</label>
    ${(kind === "both" ? ["stdout", "stderr"] : [kind]).map((which) => html`<button key=${which}
      onClick=${() => keep(which)}>Download ${which}</button>`)}</div>
    ${wrong && html`<p class="warn" role="status">${plain(`The expression cannot be read: ${wrong}`)}</p>`}
    ${error && html`<${Problem} error=${error} />`}
    ${managed.words && html`<p class="warn" role="status">${plain(managed.words)}</p>`}
    ${before > 0 && html`<p class="soft">${bytes(before)} of earlier output not shown.
      ${back < KEPT && html` <button onClick=${() => setBack(KEPT)}>Show more of it</button>`} Download has all that is
      kept.</p>`}
    <div class="box"><pre class=${wraps ? "log" : "log unwrapped"} ref=${box} tabindex="0" aria-label="Log"
      data-key="l" data-key-title="Read the log"
      onScroll=${scrolled}>${shown.map(drawn)}${!shown.length && "No output."}</pre></div>`;
}
