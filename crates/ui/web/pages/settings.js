// What a person chooses for this browser.
import { useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { moment } from "../lib/format.js";
import { SETTINGS, choose, chosen } from "../lib/settings.js";
import { Title } from "../lib/parts.js";

const WORDS = {
  theme: ["Colours", { system: "as the system has them", light: "light", dark: "dark" }],
  density: ["Rows", { comfortable: "comfortable", compact: "compact" }],
  times: ["Times", { ago: "how long ago", clock: "date and time" }],
  zone: ["Time zone", { local: "of this browser", UTC: "UTC" }],
  keys: ["Keys of one letter", { on: "on: ? lists them", off: "off" }],
};

export function Settings() {
  const [, again] = useState(0);
  return html`<${Title}>Settings<//><div class="box"><dl>${Object.keys(SETTINGS).map((name) => {
    const [title, words] = WORDS[name];
    return html`<dt key=${name}>${title}</dt><dd><select aria-label=${title} value=${chosen(name)} onChange=${(e) => {
      choose(name, e.target.value);
      again((n) => n + 1);
    }}>${SETTINGS[name].map((value) => html`<option value=${value}>${words[value]}</option>`)}</select></dd>`;
  })}</dl></div><p class="soft">It is ${moment(Date.now() * 1e6, chosen("zone"))}. This browser keeps the settings, for
    all agents at this address. <a href="/ui/settings/tokens">Log in</a> says who you are.</p>`;
}
