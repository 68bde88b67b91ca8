// Instances that a runtime has and no record knows: what they are, and what may be done with them.
import { html } from "../lib/html.js";
import { useEvery, write } from "../lib/api.js";
import { doubles, orphans } from "../lib/doubles.js";
import { plain } from "../lib/format.js";
import { slotHref } from "../lib/routes.js";
import { Act, Age, State, Table } from "../lib/parts.js";

/** Sweeps tell of no change by an event. */
export const SWEPT_MS = 5000;

const at = (instance) => `/v1/remote/unbound/${encodeURIComponent(instance.Key)}`;

/** What an operator decides of each; the servers refuse what would do a slot's work twice, and say why. */
const Decide = ({ instance }) => html`<${Act} label="Adopt" question=${`Take ${instance.Key} as the instance of ${
    instance.Slot}? It goes on.`} run=${() => write(`${at(instance)}/adopt`, {})} />
  <${Act} label="Stop" danger question=${`Stop ${instance.Key}? Its work ends.`}
    run=${() => write(`${at(instance)}/stop`, {})} />
  <${Act} label="Forget" danger question=${`Report ${instance.Key} no longer? It runs on, and nobody manages it.`}
    run=${() => write(at(instance), undefined, "DELETE")} />`;

export const Orphans = ({ all }) => html`<${Table} none="There is none." rows=${all}
  heads=${["Slot", "Observed", "Started", "*Key", "*Provider's name", "What to do"]} row=${(i) => html`<tr key=${i.Key}>
  <td class="name">${i.record ? html`<a href=${slotHref(i.Slot)}>${plain(i.Slot)}</a>` : plain(i.Slot || "–")}</td>
  <td><${State} word=${i.Observed?.State} /></td><td class="num"><${Age} at=${i.StartedAt} past /></td>
  <td class="wide name">${plain(i.Key)}</td><td class="wide">${plain(i.ProviderID)}</td>
  <td><div class="tools"><${Decide} instance=${i} /></div></td></tr>`} />`;

/** Instances of one slot side by side, when there is more than the record's. */
export function Doubles({ task }) {
  const sweeps = useEvery("/v1/remote/unbound", SWEPT_MS);
  const all = doubles(orphans(sweeps.data?.[0] ?? [], [task]));
  if (!all.length) return null;
  return html`<div class="box bad" role="alert"><b>Another instance says that it is of
    this slot: the work may be done twice.</b>
  <${Table} none="" heads=${["Instance", "Observed", "Started", "Epoch", "What to do"]}
  rows=${[{ Key: task.IncarnationID, mine: true, Observed: task.Observed, StartedAt: task.StartedAt, Epoch: task.Epoch },
    ...all]} row=${(i) => html`<tr key=${i.Key}><td class="name">${plain(i.Key)}${i.mine && html`<span class="soft">${" "}
    of the record</span>`}</td><td><${State} word=${i.Observed?.State} /></td>
    <td class="num"><${Age} at=${i.StartedAt} past /></td><td class="num">${i.Epoch || "–"}</td>
    <td>${!i.mine && html`<div class="tools"><${Decide} instance=${i} /></div>`}</td></tr>`} /></div>`;
}
