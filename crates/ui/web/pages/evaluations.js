// Evaluations: what the schedulers have to do, and what they have decided.
import { html } from "../lib/html.js";
import { useLive } from "../lib/api.js";
import { backlog, evalWords } from "../lib/evals.js";
import { plain, unplaced } from "../lib/format.js";
import { allocHref, evalHref, jobHref, nodeHref } from "../lib/routes.js";
import { Age, Cli, Loaded, Search, State, Table, Title, useFilter } from "../lib/parts.js";

export const Evals = ({ evals }) => html`<${Table} rows=${[...evals].sort((a, b) => b.ModifyIndex - a.ModifyIndex)}
  heads=${["Evaluation", "State", "Job", "Trigger", "Why not placed"]} none="There is no evaluation." row=${(e) => html`
  <tr key=${e.ID}><td class="num"><a href=${evalHref(e.ID)}>${e.ID.slice(0, 8)}</a></td>
  <td><${State} word=${e.Status} /></td>
  <td class="name">${e.JobID ? html`<a href=${jobHref(e.JobID, e.Namespace)}>${plain(e.JobID)}</a>` : "–"}</td>
  <td>${plain(e.TriggeredBy)}</td><td>${Object.entries(e.FailedTGAllocs ?? {}).map(([group, metric]) => html`
    <div>${plain(`${group}: ${unplaced(metric).join("; ")}`)}</div>`)}</td></tr>`} />`;

export const Evaluations = ({ id }) => (id ? html`<${Evaluation} id=${id} />` : html`<${Backlog} />`);

function Backlog() {
  const live = useLive(["/v1/evaluations?namespace=*"]);
  const [filter, setFilter] = useFilter();
  return html`<${Title}>Evaluations<//><div class="tools"><${Search} value=${filter} onInput=${setFilter} /></div>
    <${Loaded} live=${live}>${([evals]) => html`<div class="counts">${backlog(evals).map(([word, n, kind]) => html`<button
      key=${word} class=${`count ${kind}`} onClick=${() => setFilter(word)}><b>${n}</b>${word}</button>`)}</div>
      <${Evals} evals=${evals.filter((e) => evalWords(e).includes(filter.toLowerCase()))} />`}<//>
    <${Cli} line="drover eval list" raw="/v1/evaluations?namespace=*" />`;
}

/** One evaluation: why it was made, what it has decided, and which came from it. */
function Evaluation({ id }) {
  const path = `/v1/evaluation/${encodeURIComponent(id)}`;
  const live = useLive([`${path}?related=true`, `${path}/allocations`]);
  return html`<${Loaded} live=${live}>${([e, allocs]) => html`<${Title}>Evaluation ${e.ID.slice(0, 8)}<//>
    <div class="box"><dl><dt>State</dt><dd><${State} word=${e.Status} /> ${plain(e.StatusDescription)}</dd>
    <dt>Trigger</dt><dd>${plain(e.TriggeredBy)}</dd>
    <dt>Job</dt><dd>${e.JobID ? html`<a rel="up" href=${jobHref(e.JobID, e.Namespace)}>${plain(e.JobID)}</a>` :
      "–"}</dd>
    ${e.NodeID && html`<dt>Node</dt><dd><a href=${nodeHref(e.NodeID)}>${e.NodeID.slice(0, 8)}</a></dd>`}
    <dt>Priority</dt><dd>${e.Priority}</dd><dt>Made</dt><dd><${Age} at=${e.CreateTime} past /></dd>
    ${e.WaitUntil && !e.WaitUntil.startsWith("0001") && html`<dt>Waits until</dt><dd>${plain(e.WaitUntil)}</dd>`}</dl></div>
    ${Object.entries(e.FailedTGAllocs ?? {}).map(([group, metric]) => html`<div class="box bad" key=${group}>
      <b>${plain(group)} is not placed</b><ul>${unplaced(metric).map((line) => html`<li>${plain(line)}</li>`)}</ul></div>`)}
    <h2>What it has placed or stopped</h2><${Table} rows=${allocs} heads=${["Allocation", "State", "Wanted", "Name", "Node"]}
      none="Nothing." row=${(a) => html`<tr key=${a.ID}><td class="num"><a href=${allocHref(a.ID)}>${a.ID.slice(0, 8)}</a></td>
      <td><${State} word=${a.ClientStatus} /></td><td>${plain(a.DesiredStatus)} ${plain(a.DesiredDescription)}</td>
      <td class="name">${plain(a.Name)}</td>
      <td><a href=${nodeHref(a.NodeID)}>${plain(a.NodeName || a.NodeID.slice(0, 8))}</a></td></tr>`} />
    <h2>Related</h2><${Table} rows=${e.RelatedEvals ?? []} heads=${["Evaluation", "State", "Trigger", "What it says"]}
      none="It stands alone." row=${(r) => html`<tr key=${r.ID}><td class="num"><a href=${evalHref(r.ID)}>${
      r.ID.slice(0, 8)}</a></td>
      <td><${State} word=${r.Status} /></td><td>${plain(r.TriggeredBy)}</td><td>${plain(r.StatusDescription)}</td></tr>`} />
    <${Cli} line=${`drover eval explain ${e.ID}`} raw=${path} />`}<//>`;
}
