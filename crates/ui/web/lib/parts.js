// Parts that several pages share.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "./html.js";
import { final } from "./api.js";
import { lines } from "./diff.js";
import { ago, moment, plain, span, state } from "./format.js";
import { chosen } from "./settings.js";

/** The heading of a page. It takes the focus when it appears, which may be after the first answer. */
export function Title({ children }) {
  const heading = useRef(null);
  useEffect(() => { heading.current?.focus({ preventScroll: true }); }, []);
  return html`<h1 tabindex="-1" ref=${heading}>${children}</h1>`;
}

/** A time in Unix nanoseconds, as a person has chosen to read it; the other way is said by its tip. */
export function Age({ at, past }) {
  if (!(at > 0)) return "";
  const [since, then] = [`${ago(at, Date.now())}${past ? " ago" : ""}`, moment(at, chosen("zone"))];
  const [shown, tip] = chosen("times") === "clock" ? [then, since] : [since, then];
  return html`<time datetime=${new Date(at / 1e6).toISOString()} title=${tip}>${shown}</time>`;
}

export const State = ({ word }) => {
  const s = state(word);
  return html`<span class=${`state ${s.kind}`}><span aria-hidden="true">${s.mark}</span> ${plain(s.word)}</span>`;
};

export const Problem = ({ error }) => html`<div class="box bad" role="alert"><p>${plain(error.message)}</p>
  ${error.status === 403 && html`<p><a href=${`/ui/settings/tokens?back=${encodeURIComponent(location.pathname)}`}>
    Log in with a token</a></p>`}</div>`;

/** What a page shows until, and while, it has no fresh answer. */
export const Loaded = ({ live, children }) => html`<div>
  ${live.error && (!live.data || final(live.error)) && html`<${Problem} error=${live.error} />`}
  ${live.data && live.stale > 0 && !final(live.error) && html`<p class="warn">
    ▲ stale for ${span(Date.now() - live.stale)}:${" "}
    ${plain(live.error?.status ? live.error.message : "the agent does not answer")}; trying again</p>`}
  ${live.data ? children(live.data) : !live.error && html`<p class="soft" role="status">Loading…</p>`}</div>`;

const PAGE = 100;

/** A table that never holds more than some hundred rows in the document. */
export function Table({ heads, rows, row, none }) {
  const [shown, show] = useState(PAGE);
  if (rows.length === 0) return html`<div class="box soft">${none}</div>`;
  return html`<div class="table" tabindex="0" role="region" aria-label="Table"><table aria-rowcount=${rows.length}>
    <thead><tr>${heads.map((head) => html`<th scope="col" class=${head.startsWith("*") ? "wide" : ""}>
      ${head.replace("*", "")}</th>`)}</tr></thead>
    <tbody>${rows.slice(Math.max(0, shown - PAGE * 2), shown).map(row)}</tbody></table></div>
    ${rows.length > PAGE && html`<p class="tools"><span class="soft">
      ${Math.max(0, shown - PAGE * 2) + 1}–${Math.min(shown, rows.length)} of ${rows.length}</span>
      ${shown > PAGE && html`<button onClick=${() => show(shown - PAGE)}>Back</button>`}
      ${shown < rows.length && html`<button onClick=${() => show(shown + PAGE)}>More</button>`}</p>`}`;
}

export const Search = ({ value, onInput }) => html`<input type="search" value=${value} aria-label="Filter"
  placeholder="Filter ( / )" onInput=${(e) => onInput(e.target.value)} />`;

/** A part of what is shown that is in the address, so that a link shows the same. `first` is left out of it. */
export function useParam(name, first = "") {
  const [value, set] = useState(new URLSearchParams(location.search).get(name) ?? first);
  return [value, (next) => {
    set(next);
    const url = new URL(location.href);
    if (next && next !== first) url.searchParams.set(name, next); else url.searchParams.delete(name);
    history.replaceState(null, "", url);
  }];
}

/** The filter of a list. */
export const useFilter = () => useParam("q");

/** A button that asks first, and shows what the server says. `typed` is what a person must type before. */
export function Act({ label, question, run, danger, typed = "" }) {
  const [open, set] = useState(false);
  const [said, say] = useState(null);
  const [busy, work] = useState(false);
  const [text, type] = useState("");
  const go = async () => {
    work(true);
    try { await run(); set(false); say(null); } catch (error) { say(error); }
    work(false);
  };
  return html`<button class=${danger ? "danger" : ""} onClick=${() => { type(""); set(true); }}>${label}</button>
    ${open && html`<${Dialog} close=${() => set(false)}><p>${plain(question)}</p>
      ${said && html`<${Problem} error=${said} />`}
      ${typed && html`<p class="tools"><label>Type ${plain(typed)} to go on <input aria-label="What to type"
        value=${text} onInput=${(e) => type(e.target.value)} /></label></p>`}
      <p class="tools"><button class=${danger ? "danger" : ""} disabled=${busy || text !== typed}
      onClick=${go}>${label}</button>
      <button onClick=${() => set(false)}>Leave it</button></p><//>`}`;
}

/** A dialog that is open as long as it is there. */
export function Dialog({ close, children }) {
  const [node, set] = useState(null);
  useEffect(() => { if (node && !node.open) node.showModal(); }, [node]);
  return html`<dialog ref=${set} onClose=${close}>${children}</dialog>`;
}

export const Cli = ({ line, raw }) => html`<footer>Command line: <code>${plain(line)}</code>${" · "}
  <button onClick=${() => navigator.clipboard?.writeText(line)}>Copy</button>${" · "}
  <a href=${raw} target="_blank" rel="noopener">JSON</a></footer>`;

const KIND = { Added: "good", Deleted: "bad", Edited: "warn" };

/** What a plan or a version changes. The mark says it without the colour. */
export function Diff({ diff }) {
  const all = lines(diff);
  if (all.length === 0) return html`<p class="soft">Nothing changes.</p>`;
  return html`<pre class="diff">${all.map((line) => html`<span class=${KIND[line.kind] ?? ""}>${line.mark} ${
    "  ".repeat(line.depth)}${plain(line.name)}${line.text !== "" && `: ${plain(line.text)}`}${
    line.note && ` (${plain(line.note)})`}</span>`)}</pre>`;
}
