// Deployments of a job: who waits for whom.
import { html } from "../lib/html.js";
import { newestFirst } from "../lib/allocs.js";
import { useLive, write } from "../lib/api.js";
import { plain, span } from "../lib/format.js";
import { allocHref } from "../lib/routes.js";
import { Act, Loaded, State, Table } from "../lib/parts.js";
import { waitsFor, waterfall } from "../lib/waterfall.js";

const open = (d) => ["running", "paused", "pending", "blocked"].includes(d.Status);

export function Deployments({ all: given }) {
  const all = newestFirst(given);
  const newest = all[0];
  const groups = (d) => Object.entries(d.TaskGroups ?? {}).map(([name, g]) => html`<div key=${name}>${plain(name)}: ${
    g.HealthyAllocs} of ${g.DesiredTotal} healthy${g.UnhealthyAllocs > 0 && html`, <span class="bad">${g.UnhealthyAllocs}
    unhealthy</span>`}${g.DesiredCanaries > 0 && `, ${g.DesiredCanaries} ${g.DesiredCanaries === 1 ? "canary" : "canaries"}${
    g.Promoted ? ", promoted" : ""}`}</div>`);
  return html`<${Table} heads=${["Deployment", "State", "Version", "Groups", "What it waits for"]} rows=${all}
    none="There has been no deployment." row=${(d) => html`<tr key=${d.ID}>
    <td class="num">${d.ID.slice(0, 8)}</td><td><${State} word=${d.Status} /></td><td>${d.JobVersion}</td><td>${groups(d)}</td>
    <td>${plain(waitsFor(d) || d.StatusDescription)} ${open(d) && html`
      <${Act} label="Promote" question="Promote all canaries of this deployment?" run=${() =>
        write(`/v1/deployment/promote/${d.ID}`, { DeploymentID: d.ID, All: true })} />
      <${Act} label=${d.Status === "paused" ? "Resume" : "Pause"} question=${d.Status === "paused" ?
        "Let this deployment go on?" : "Place nothing more until somebody resumes it?"} run=${() =>
        write(`/v1/deployment/pause/${d.ID}`, { DeploymentID: d.ID, Pause: d.Status !== "paused" })} />
      <${Act} label="Fail" danger question="Fail this deployment?" run=${() =>
        write(`/v1/deployment/fail/${d.ID}`, {})} />`}</td></tr>`} />
    ${newest && html`<${Steps} id=${newest.ID} key=${newest.ID} />`}`;
}

/** Each allocation of a deployment over time: waits to start, waits to be healthy. The words say the same. */
function Steps({ id }) {
  const live = useLive([`/v1/deployment/allocations/${id}`]);
  return html`<h2>How the newest goes</h2><${Loaded} live=${live}>${([allocs]) => {
    const rows = waterfall(allocs);
    const now = Date.now();
    const from = Math.min(...rows.map((r) => r.placed), now);
    const to = Math.max(...rows.map((r) => r.judged || now), from + 1);
    const x = (at) => ((at - from) / (to - from)) * 200;
    return html`<${Table} heads=${["Allocation", "Placed, started, healthy", "Started after", "Healthy after"]} rows=${rows}
      none="It has placed nothing." row=${(r) => {
        const [started, judged] = [r.started || (r.judged || now), r.judged || now];
        return html`<tr key=${r.id}><td class="name"><a href=${allocHref(r.id)}>${plain(r.name)}</a>${r.canary &&
          html`<span class="soft"> canary</span>`}</td><td><svg class="steps" viewBox="0 0 200 12" preserveAspectRatio="none"
          aria-hidden="true"><rect class="rest" x=${x(r.placed)} width=${Math.max(1, x(started) - x(r.placed))} height="12" />
          <rect class=${r.healthy === false ? "full" : r.healthy ? "lane" : "used"} x=${x(started)} height="12"
          width=${Math.max(1, x(judged) - x(started))} /></svg></td>
          <td class="num">${r.started ? span(r.started - r.placed) : "not yet"}</td>
          <td class="num">${r.healthy === false ? html`<span class="bad">✕ unhealthy after ${span(r.judged - r.placed)}</span>` :
            r.healthy ? span(r.judged - r.placed) : "not yet"}</td></tr>`;
      }} />`;
  }}<//>`;
}
