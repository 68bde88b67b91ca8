// One field that leads everywhere: Ctrl+K or Cmd+K.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "./html.js";
import { ask, read } from "./api.js";
import { plain } from "./format.js";
import { matches } from "./matches.js";
import { Dialog } from "./parts.js";

/** Fewer letters find too much. */
const LETTERS = 2;
const PAUSE_MS = 150;

export function Palette({ pages, visit, close }) {
  const [text, setText] = useState("");
  const [tasks, setTasks] = useState([]);
  const [found, setFound] = useState({});
  const [at, move] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    // Whoever may not see them finds none.
    read("/v1/remote/tasks?namespace=*", stop.signal).then(setTasks, () => {});
    return () => stop.abort();
  }, []);
  useEffect(() => {
    move(0);
    if (text.trim().length < LETTERS) { setFound({}); return undefined; }
    const stop = new AbortController();
    const body = { Text: text.trim(), Context: "all", Namespace: "*" };
    const timer = setTimeout(async () => {
      try {
        const reply = await ask("/v1/search/fuzzy?namespace=*", { method: "POST", body, signal: stop.signal });
        setFound((await reply.json()).Matches ?? {});
      } catch { if (!stop.signal.aborted) setFound({}); }
    }, PAUSE_MS);
    return () => { clearTimeout(timer); stop.abort(); };
  }, [text]);
  const rows = matches(text, pages, tasks, found);
  const take = (row) => { if (row) { close(); visit(row.href); } };
  const key = (e) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (step) { e.preventDefault(); move((rows.length + at + step) % Math.max(1, rows.length)); }
    // The browser would empty the field first.
    if (e.key === "Escape") { e.preventDefault(); close(); }
    if (e.key === "Enter") { e.preventDefault(); take(rows[at]); }
  };
  return html`<${Dialog} close=${close}><input type="search" role="combobox" aria-label="Go to" aria-expanded="true"
    aria-controls="found" aria-activedescendant=${rows[at] ? `found-${at}` : null} placeholder="Go to …" value=${text}
    onInput=${(e) => setText(e.target.value)} onKeyDown=${key} />
    <ul id="found" class="found" role="listbox" aria-label="Found">${rows.map((row, i) => html`<li id=${`found-${i}`}
      role="option" aria-selected=${i === at ? "true" : "false"} onClick=${() => take(row)}><b>${plain(row.name)}</b>
      <span class="soft">${row.kind} ${plain(row.more)}</span></li>`)}</ul>
    ${rows.length === 0 && html`<p class="soft" role="status">Nothing has such a name.</p>`}<//>`;
}
