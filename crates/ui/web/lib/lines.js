// The lines of a log that grows: drawn in blocks, filtered, and kept at their end until somebody scrolls up.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "./html.js";
import { bare, coloured, filterOf } from "./ansi.js";
import { plain } from "./format.js";
import { EMPTY, grown, whole } from "./logtext.js";
import { remembered } from "./remembered.js";

/** What comes is shown together, this often. */
const GATHER_MS = 150;

/** `{log, dropped, add(text), clear()}`: a log of about `kept` characters, and how many it has dropped before them. */
export function useLines(kept) {
  const [state, set] = useState({ log: EMPTY, dropped: 0 });
  const come = useRef({ text: "", timer: 0 });
  const forget = () => {
    clearTimeout(come.current.timer);
    come.current = { text: "", timer: 0 };
  };
  useEffect(() => forget, []);
  const show = () => {
    const { text } = come.current;
    come.current = { text: "", timer: 0 };
    set((old) => {
      const { log, dropped } = grown(old.log, text, kept);
      return { log, dropped: old.dropped + dropped };
    });
  };
  const add = (text) => {
    come.current.text += text;
    if (text) come.current.timer ||= setTimeout(show, GATHER_MS);
  };
  const clear = () => { forget(); set({ log: EMPTY, dropped: 0 }); };
  return { ...state, add, clear };
}

/** A block as it is drawn: the same one is not drawn again. */
const drawn = remembered((block) => html`<span>${coloured(block.text, block.style).map((part) => (part.name ?
  html`<span class=${part.name}>${plain(part.text)}</span>` : plain(part.text)))}</span>`);

/** The lines that hold `filter`, or all. `none` is shown where there are none. */
export function Lines({ log, filter, wraps = true, none }) {
  const box = useRef(null);
  const below = useRef(true);
  // Whoever has scrolled up reads on there.
  useEffect(() => { if (box.current && below.current) box.current.scrollTop = box.current.scrollHeight; }, [log]);
  const scrolled = ({ target }) => {
    below.current = target.scrollHeight - target.scrollTop - target.clientHeight < 40;
  };
  const { fits, wrong } = filterOf(filter);
  const found = filter && whole(log).split("\n").filter((line) => fits(bare(line))).join("\n");
  const shown = filter ? [{ text: found }].filter(({ text }) => text) : log.blocks;
  return html`${wrong && html`<p class="warn" role="status">${plain(`The expression cannot be read: ${wrong}`)}</p>`}
    <div class="box"><pre class=${wraps ? "log" : "log unwrapped"} ref=${box} tabindex="0" aria-label="Log"
    data-key="l" data-key-title="Read the log" onScroll=${scrolled}>${shown.map(drawn)}${
    !shown.length && none}</pre></div>`;
}
