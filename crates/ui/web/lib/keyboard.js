// Keys that move over pages: listens, finds what `keys.js` says in the document, and moves there.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "./html.js";
import { plain } from "./format.js";
import { EVERYWHERE, TOGETHER_MS, meaning, rowOf } from "./keys.js";
import { letterOf, meant, ofPage } from "./letters.js";
import { Dialog } from "./parts.js";
import { parse, up } from "./routes.js";
import { chosen, letters } from "./settings.js";

/** Things of this page that have keys, each key once. */
function keyed() {
  const all = [...document.querySelectorAll("main [data-key]")].filter((e) => e.getClientRects().length && !e.disabled);
  return new Map(all.reverse().map((element) => [element.dataset.key, element]));
}

/** Whoever holds Shift for so long wants to see which key leads where. */
const HELD_MS = 400;

/** The links of the rows that are shown. */
const rowLinks = () =>
  [...document.querySelectorAll("main tbody tr")].map((row) => row.querySelector("a")).filter(Boolean);

/** Shows the keys beside what they lead to, or hides them. */
function hint(shows) {
  const root = document.documentElement;
  if (!shows) return void delete root.dataset.hints;
  const mine = letters();
  const say = (keys) => [...keys].map((key) => letterOf(mine, key)).join("");
  document.querySelectorAll("main [data-key]").forEach((e) => { e.dataset.hint = say(e.dataset.key); });
  document.querySelectorAll("header nav [data-letter]").forEach((e) => {
    e.dataset.hint = `${letterOf(mine, "g")} ${letterOf(mine, ofPage(e.dataset.letter))}`;
  });
  rowLinks().slice(0, 99).forEach((e, i) => { e.dataset.hint = String(i + 1).padStart(2, "0"); });
  root.dataset.hints = "";
  return undefined;
}

const press = (element) => { element?.focus(); element?.click(); };

/** The neighbour of the one of these that is current; the first where none is. */
function beside(all, current, by) {
  const at = all.findIndex(current);
  return at < 0 ? all[0] : all[Math.min(all.length - 1, Math.max(0, at + by))];
}

function act(what, visit) {
  const current = (e) => e.getAttribute("aria-current") === "page";
  if (what.go) visit(what.go);
  if (what.find) document.querySelector("main input[type=search]")?.focus();
  if (what.press) press(keyed().get(what.press));
  if (what.tab) press(beside([...document.querySelectorAll("main .tabs a")], current, what.tab));
  if (what.page) press(beside([...document.querySelectorAll("header nav a")], current, what.page));
  if (what.step) beside(rowLinks(), (link) => link === document.activeElement, what.step)?.focus();
  if (what.up) {
    // Of the address as it is now: what was pressed just before may not be drawn yet.
    const to = document.querySelector("main a[rel=up]")?.getAttribute("href") ??
      up(parse(location.pathname, location.search));
    if (to) visit(to);
  }
}

/** Listens while it is there. It shows nothing until somebody asks which keys there are. */
export function Keyboard({ pages, route, visit }) {
  const [shown, show] = useState(null);
  useEffect(() => {
    let [before, since, held] = ["", 0, 0];
    const hide = () => { clearTimeout(held); hint(false); };
    const released = (e) => { if (e.key === "Shift") hide(); };
    const pressed = (e) => {
      if (chosen("keys") === "off" || e.defaultPrevented || e.ctrlKey || e.metaKey || e.altKey ||
        e.target.closest?.("input:not([type=checkbox]), textarea, select, dialog, .terminal")) return;
      if (e.key === "Shift") {
        if (!e.repeat) held = setTimeout(() => hint(true), HELD_MS);
        return;
      }
      const here = keyed();
      const together = e.timeStamp - since < TOGETHER_MS ? before : "";
      const key = meant(letters(), together === "g", e.key);
      const what = meaning(together, key, e.shiftKey, pages, [...here.keys()]);
      // Where a digit with Shift is a sign that means something, it means that.
      const row = what ? null : rowOf(together, e.code, e.shiftKey);
      if (row) {
        [before, since] = [row.begun ?? "", e.timeStamp];
        e.preventDefault();
        press(row.open && rowLinks()[row.open - 1]);
        return;
      }
      // What has meant something begins nothing else.
      [before, since] = what ? ["", 0] : [key, e.timeStamp];
      if (!what) return;
      e.preventDefault();
      if (what.help) show([...here].map(([keys, element]) => [keys, element.dataset.keyTitle ?? element.textContent]));
      else act(what, visit);
    };
    document.addEventListener("keydown", pressed);
    document.addEventListener("keyup", released);
    addEventListener("blur", hide);
    return () => {
      hide();
      document.removeEventListener("keydown", pressed);
      document.removeEventListener("keyup", released);
      removeEventListener("blur", hide);
    };
  }, [route.page, route.id, route.tab]);
  if (!shown) return null;
  const mine = letters();
  const said = (keys) => (keys.length > 2 ? keys : [...keys].map((key) => letterOf(mine, key)).join(""));
  const list = (all) => html`<dl class="keys">${all.map(([keys, title]) => html`<dt><kbd>${plain(said(keys))}</kbd></dt>
    <dd>${plain(title)}</dd>`)}</dl>`;
  return html`<${Dialog} close=${() => show(null)}><h2>Keys</h2>
    ${shown.length > 0 && html`<h3>On this page</h3>${list(shown)}`}
    <h3>On every page</h3>${list(EVERYWHERE)}
    <h3>To a page</h3>${list(pages.filter(([, , letter]) => letter).map(([, title, letter]) =>
      [`${letterOf(mine, "g")} ${letterOf(mine, ofPage(letter))}`, title]))}
    <p class="tools"><button onClick=${() => show(null)}>Close</button>
      <a href="/ui/settings/user-settings" onClick=${() => show(null)}>Other keys, or none</a></p><//>`;
}
