// Keys that move over pages: listens, finds what `keys.js` says in the document, and moves there.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "./html.js";
import { plain } from "./format.js";
import { EVERYWHERE, TOGETHER_MS, meaning } from "./keys.js";
import { Dialog } from "./parts.js";
import { up } from "./routes.js";
import { chosen } from "./settings.js";

/** Things of this page that have keys, each key once. */
function keyed() {
  const all = [...document.querySelectorAll("main [data-key]")].filter((e) => e.getClientRects().length && !e.disabled);
  return new Map(all.reverse().map((element) => [element.dataset.key, element]));
}

const press = (element) => { element?.focus(); element?.click(); };

/** The neighbour of the one of these that is current; the first where none is. */
function beside(all, current, by) {
  const at = all.findIndex(current);
  return at < 0 ? all[0] : all[Math.min(all.length - 1, Math.max(0, at + by))];
}

function act(what, route, visit) {
  const current = (e) => e.getAttribute("aria-current") === "page";
  if (what.go) visit(what.go);
  if (what.find) document.querySelector("main input[type=search]")?.focus();
  if (what.press) press(keyed().get(what.press));
  if (what.tab) press(beside([...document.querySelectorAll("main .tabs a")], current, what.tab));
  if (what.page) press(beside([...document.querySelectorAll("header nav a")], current, what.page));
  if (what.step) {
    const rows = [...document.querySelectorAll("main tbody tr")].map((row) => row.querySelector("a")).filter(Boolean);
    beside(rows, (link) => link === document.activeElement, what.step)?.focus();
  }
  if (what.up) {
    const to = document.querySelector("main a[rel=up]")?.getAttribute("href") ?? up(route);
    if (to) visit(to);
  }
}

/** Listens while it is there. It shows nothing until somebody asks which keys there are. */
export function Keyboard({ pages, route, visit }) {
  const [shown, show] = useState(null);
  useEffect(() => {
    let [before, since] = ["", 0];
    const pressed = (e) => {
      if (chosen("keys") === "off" || e.defaultPrevented || e.ctrlKey || e.metaKey || e.altKey || e.key === "Shift" ||
        e.target.closest?.("input:not([type=checkbox]), textarea, select, dialog, .terminal")) return;
      const here = keyed();
      const what = meaning(e.timeStamp - since < TOGETHER_MS ? before : "", e.key, e.shiftKey, pages, [...here.keys()]);
      // What has meant something begins nothing else.
      [before, since] = what ? ["", 0] : [e.key, e.timeStamp];
      if (!what) return;
      e.preventDefault();
      if (what.help) show([...here].map(([keys, element]) => [keys, element.dataset.keyTitle ?? element.textContent]));
      else act(what, route, visit);
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, [route.page, route.id, route.tab]);
  if (!shown) return null;
  const list = (all) => html`<dl class="keys">${all.map(([keys, title]) => html`<dt><kbd>${plain(keys)}</kbd></dt>
    <dd>${plain(title)}</dd>`)}</dl>`;
  return html`<${Dialog} close=${() => show(null)}><h2>Keys</h2>
    ${shown.length > 0 && html`<h3>On this page</h3>${list(shown)}`}
    <h3>On every page</h3>${list(EVERYWHERE)}
    <h3>To a page</h3>${list(pages.filter(([, , letter]) => letter).map(([, title, letter]) => [`g ${letter}`, title]))}
    <p class="tools"><button onClick=${() => show(null)}>Close</button>
      <a href="/ui/settings/user-settings" onClick=${() => show(null)}>Switch keys off</a></p><//>`;
}
