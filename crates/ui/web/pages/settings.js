// What a person chooses for this browser.
import { useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { moment, plain } from "../lib/format.js";
import { all, choosing, letterOf } from "../lib/letters.js";
import { SETTINGS, choose, chooseLetters, chosen, letters } from "../lib/settings.js";
import { Table, Title } from "../lib/parts.js";

const WORDS = {
  theme: ["Colours", { system: "as the system has them", light: "light", dark: "dark" }],
  density: ["Rows", { comfortable: "comfortable", compact: "compact" }],
  times: ["Times", { ago: "how long ago", clock: "date and time" }],
  zone: ["Time zone", { local: "of this browser", UTC: "UTC" }],
  keys: ["Keys of one letter", { on: "on: ? lists them", off: "off" }],
};

export function Settings({ pages }) {
  const [, again] = useState(0);
  return html`<${Title}>Settings<//><div class="box"><dl>${Object.keys(SETTINGS).map((name) => {
    const [title, words] = WORDS[name];
    return html`<dt key=${name}>${title}</dt><dd><select aria-label=${title} value=${chosen(name)} onChange=${(e) => {
      choose(name, e.target.value);
      again((n) => n + 1);
    }}>${SETTINGS[name].map((value) => html`<option value=${value}>${words[value]}</option>`)}</select></dd>`;
  })}</dl></div><p class="soft">It is ${moment(Date.now() * 1e6, chosen("zone"))}. This browser keeps the settings, for
    all agents at this address. <a href="/ui/settings/tokens">Log in</a> says who you are.</p>
    <${Letters} pages=${pages} />`;
}

/** Another letter for whatever has one. */
function Letters({ pages }) {
  const [now, set] = useState(letters);
  const [wrong, say] = useState("");
  const take = (next) => { chooseLetters(next); set(next); say(""); };
  const change = (id, key) => {
    const { chosen: next, wrong: why } = choosing(now, id, key, pages);
    if (next) take(next); else say(why);
  };
  return html`<h2>Letters</h2><div class="tools"><button onClick=${() => take({})}>All as they were</button></div>
    <p class="bad" role="alert">${plain(wrong)}</p>
    <${Table} heads=${["What", "Key", "Another key"]} none="" rows=${all(pages)} row=${([id, title]) => html`<tr key=${id}>
    <td class="name">${title}</td><td><kbd>${plain(id.length > 1 ? `${letterOf(now, "g")} ${letterOf(now, id)}` :
    letterOf(now, id))}</kbd></td><td><input class="letter" aria-label=${`Key of ${title}`} maxlength="1" size="2"
    value=${now[id] ?? ""} onChange=${(e) => { change(id, e.target.value); e.target.value = letters()[id] ?? ""; }} /></td></tr>`} />`;
}
