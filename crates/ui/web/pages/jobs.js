import { useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { useLive, write } from "../lib/api.js";
import { plain, unblocks, unplaced } from "../lib/format.js";
import { delays, verdict } from "../lib/slots.js";
import { allocWords, newestFirst, talking } from "../lib/allocs.js";
import { each } from "../lib/bulk.js";
import { faults, faulty, folded, isParent, tally, unfolded, wanted, words } from "../lib/jobs.js";
import { allocHref, editHref, jobHref, logHref, nodeHref } from "../lib/routes.js";
import { Actions } from "./actions.js";
import { Children } from "./children.js";
import { ServicesOf } from "./cluster.js";
import { Definition } from "./definition.js";
import { Deployments } from "./deployments.js";
import { Evals } from "./evaluations.js";
import { Grid } from "./grid.js";
import { GroupOf, NodesOf, VariablesOf } from "./jobparts.js";
import { Versions } from "./versions.js";
import { Act, Age, Cli, Loaded, Search, State, Table, Title, useFilter, useParam } from "../lib/parts.js";

export function Jobs() {
  const live = useLive(["/v1/jobs?namespace=*"], ["/v1/jobs?namespace=*&per_page=100"]);
  const [filter, setFilter] = useFilter();
  const [all, showAll] = useParam("children");
  return html`<${Title}>Jobs<//>
    <div class="tools"><${Search} value=${filter} onInput=${setFilter} />
      <label><input type="checkbox" checked=${Boolean(all)} onChange=${(e) => showAll(e.target.checked ? "all" : "")} />
      Also children</label><a href="/ui/jobs/run">Run a job</a></div>
    <${Loaded} live=${live}>${([jobs]) => {
      const given = all ? jobs : live.partial ? unfolded(jobs) : folded(jobs);
      const wrong = faulty(given);
      const sought = filter.toLowerCase();
      const rows = filter ? given.filter((j) => words(j).includes(sought)) : given;
      return html`${wrong.length > 0 && html`<div class="counts">${wrong.map(([word, n]) => html`<button key=${word}
          class="count" onClick=${() => setFilter(word)}><b>${n}</b>${n === 1 ? "job" : "jobs"} ${word}</button>`)}</div>`}
        <${Table} rows=${rows} heads=${["Job", "State", "Running", "Not as it should be", "*Type", "*Namespace"]}
        none=${jobs.length ? "No job matches the filter." : "No job has been registered yet."}
        row=${(job) => {
          const children = Object.entries(job.JobSummary?.Children ?? {}).filter(([, n]) => n > 0);
          return html`<tr key=${`${job.Namespace}/${job.ID}`}>
          <td class="name"><a href=${jobHref(job.ID, job.Namespace)}>${plain(job.ID)}</a>${job.Orphan && html`
            <span class="soft"> orphan of ${plain(job.ParentID)}</span>`}</td>
          <td><${State} word=${job.Stop ? "stopped" : job.Status} /></td><td class="num"><${Filled} job=${job} /></td>
          <td>${faults(job).map(([word, kind, n]) => html`<span class=${`state ${kind}`}>${n} ${word} </span>`)}
            ${children.length > 0 && html`<a href=${jobHref(job.ID, job.Namespace, "dispatch")}>children: ${children
              .map(([word, n]) => `${n} ${word.toLowerCase()}`).join(", ")}</a>`}</td>
          <td class="wide">${job.Type}</td><td class="wide">${plain(job.Namespace)}</td></tr>`; }} />`;
    }}<//><${Cli} line="drover job status" raw="/v1/jobs?namespace=*" />`;
}

/** How many of the wanted allocations run: a bar, and the numbers. */
function Filled({ job }) {
  const [runs, of] = [tally(job).Running, wanted(job)];
  if (!of) return "–";
  return html`<svg class="fill" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect class="rest"
    width="100" height="10" rx="2" /><rect class="runs" height="10" rx="2" width=${(runs / of) * 100} /></svg>
    ${runs} of ${of}`;
}

const TABS = [["", "Overview"], ["allocations", "Allocations"], ["deployments", "Deployments"],
  ["evaluations", "Evaluations"], ["versions", "Versions"], ["services", "Services"], ["clients", "Nodes"],
  ["variables", "Variables"], ["actions", "Actions"], ["definition", "Definition"]];
const OF_PARENTS = [["dispatch", "Children"]];

export function Job({ id, namespace, tab }) {
  const path = `/v1/job/${encodeURIComponent(id)}`;
  const ns = `?namespace=${encodeURIComponent(namespace)}`;
  const named = [...TABS, ...OF_PARENTS].some(([name]) => name === tab);
  const parts = { "": ["allocations", "evaluations"], allocations: ["allocations"], deployments: ["deployments"],
    evaluations: ["evaluations"], clients: ["allocations"] }[tab] ?? (named ? [] : ["allocations"]);
  const short = { allocations: "&task_states=false" };
  const paths = [path + ns, ...parts.map((part) => `${path}/${part}${ns}${short[part] ?? ""}`)];
  const live = useLive(paths, paths.map((each) => (each.includes("/allocations?") ? `${each}&per_page=100&reverse=true` :
    each)));
  const [counts, setCounts] = useState({});
  return html`<${Title}>${plain(id)}<//><nav class="tabs" aria-label="Parts of the job">
    ${(isParent(live.data?.[0]) ? [...TABS, ...OF_PARENTS] : TABS).map(([name, title]) => html`<a href=${jobHref(id, namespace, name)}
      data-key=${{ evaluations: "e", definition: "d" }[name]} aria-current=${tab === name ? "page" : null}>${title}</a>`)}</nav>
    <${Loaded} live=${live} key=${tab}>${([job, ...more]) => {
      if (tab === "definition") return html`<${Definition} job=${job} />`;
      if (tab === "dispatch") return html`<${Children} job=${job} ns=${ns} path=${path} />`;
      if (tab === "services") return html`<${ServicesOf} id=${id} namespace=${namespace} />`;
      if (tab === "versions") return html`<${Versions} job=${job} path=${path} ns=${ns} />`;
      if (tab === "variables") return html`<${VariablesOf} id=${id} namespace=${namespace} />`;
      if (tab === "actions") return html`<${Actions} job=${job} path=${path} ns=${ns} />`;
      if (tab === "clients") return html`<${NodesOf} allocs=${more[0] ?? []} />`;
      if (!named) {
        return html`<${GroupOf} job=${job} name=${tab} path=${path} ns=${ns} /><h2>Allocations</h2>
          <${Allocs} allocs=${(more[0] ?? []).filter((a) => a.TaskGroup === tab)} />`;
      }
      if (tab === "deployments") return html`<${Deployments} all=${more[0] ?? []} />`;
      if (tab === "evaluations") return html`<${Evals} evals=${more[0] ?? []} />`;
      if (tab === "allocations") return html`${!live.partial && html`<${Grid} job=${job}
        allocs=${more[0] ?? []} />`}<${Allocs} allocs=${more[0] ?? []} all=${!live.partial} />`;
      const allocs = more[0] ?? [];
      const runs = allocs.filter((a) => a.ClientStatus === "running");
      const talks = talking(job, allocs);
      // Of a part nothing can be said yet.
      const [kind, sentence] = live.partial ? ["", ""] : verdict(job, allocs, more[1] ?? []);
      const waiting = (more[1] ?? []).find((e) => e.Status === "blocked");
      return html`<div class="box"><dl><dt>State</dt><dd><${State} word=${job.Stop ? "stopped" : job.Status} />
          <span class=${kind}> ${plain(sentence)}</span></dd>
        <dt>Type</dt><dd>${job.Type}, priority ${job.Priority}</dd><dt>Version</dt><dd>${job.Version}</dd>
        <dt>Groups</dt><dd>${(job.TaskGroups ?? []).map((g) => html`<a key=${g.Name} href=${
          jobHref(id, namespace, encodeURIComponent(g.Name))}>${plain(g.Name)}</a> × ${g.Count} `)}</dd></dl>
        ${!live.partial && html`<${Grid} job=${job} allocs=${allocs} />`}</div>
        ${waiting && html`<${Why} failed=${waiting.FailedTGAllocs} />`}
        <div class="tools">${job.Stop ? html`<span class="soft">The job is stopped.</span>
          <${Act} label="Start" question=${`Start ${id} again, as version ${job.Version} is?`} run=${() =>
            write(`/v1/jobs${ns}`, { Job: { ...job, Stop: false }, EnforceIndex: true, JobModifyIndex: job.JobModifyIndex })} />
          <${Act} label="Purge" danger question=${`Forget ${id}, its versions and its allocations?`} run=${async () => {
            await write(`${path}${ns}&purge=true`, undefined, "DELETE");
            location.assign("/ui/jobs");
          }} />` : html`<${Act} label="Stop" danger
          question=${`Stop ${id}? Its ${runs.length === 1 ? "allocation ends" : `${runs.length} running allocations end`}.`}
          typed=${runs.length > MANY_ENDS ? id : ""} run=${() => write(path + ns, undefined, "DELETE")} />
          ${delays(job) && html`<${Act} label="Stop without delay" danger typed=${runs.length > MANY_ENDS ? id : ""}
            question=${`Stop ${id} and leave its shutdown_delay out? Clients that still know its services meet nobody.`}
            run=${() => write(`${path}${ns}&no_shutdown_delay=true`, undefined, "DELETE")} />`}
          <${Act} label="Restart all" danger question=${`Restart the tasks of all running allocations of ${id} in place?`}
            typed=${runs.length > MANY_ENDS ? id : ""} run=${() => each(runs, restarted)} />
          <a data-key="x" href=${`/ui/exec/${encodeURIComponent(id)}${ns}`}>Exec</a>`}
          <a href=${editHref(id, namespace)}>Edit</a>${talks && html`
          <a data-key="l" href=${logHref(talks.id, talks.task)}>Logs</a>`}
          ${(job.TaskGroups ?? []).map((g) => {
            const count = counts[g.Name] ?? g.Count;
            return html`<label>${plain(g.Name)} <input type="number" min="0" value=${count}
              onInput=${(e) => setCounts({ ...counts, [g.Name]: Number(e.target.value) })} /></label>
              <${Act} label="Scale" question=${`Set the count of ${g.Name} to ${count}?`} run=${() =>
                write(`${path}/scale${ns}`, { Count: count, Target: { Job: id, Group: g.Name },
                  Message: "from the web UI" })} />`;
          })}</div>
        <h2>Allocations</h2><${Allocs} allocs=${allocs} />`;
    }}<//><${Cli} line=${`drover job status -namespace ${namespace} ${id}`} raw=${path + ns} />`;
}

/** The scheduler's reasons, group by group. */
export const Why = ({ failed }) => html`<div class="box bad"><b>Not everything is placed</b>
  ${Object.entries(failed ?? {}).map(([group, metric]) => html`<p><b>${plain(group)}</b></p>
    <ul>${unplaced(metric).map((line) => html`<li>${plain(line)}</li>`)}</ul><p>${plain(unblocks(metric))}</p>`)}</div>`;

/** From so many rows on, there is a filter. */
const MANY = 20;
/** Whoever ends more than so many at once types the name of what ends. */
export const MANY_ENDS = 10;

const restarted = (a) => write(`/v1/client/allocation/${a.ID}/restart`, { AllTasks: false, TaskName: "" });
const stopped = (a) => write(`/v1/allocation/${a.ID}/stop`, {});

/** `all`: with what can be done to all that the filter leaves. */
export function Allocs({ allocs, all: bulk }) {
  const [filter, setFilter] = useFilter();
  const sought = filter.toLowerCase();
  const all = newestFirst(allocs);
  const rows = filter ? all.filter((a) => allocWords(a).includes(sought)) : all;
  const runs = bulk ? rows.filter((a) => a.ClientStatus === "running") : [];
  const these = `${runs.length === 1 ? "the one that runs" : `the ${runs.length} that run`}${filter &&
    (runs.length === 1 ? " and matches the filter" : " and match the filter")}`;
  const typed = runs.length > MANY_ENDS ? `${runs.length}` : "";
  return html`<div class="tools">${(bulk || filter || all.length > MANY) && html`<${Search} value=${filter}
    onInput=${setFilter} />`}${runs.length > 0 && html`<${Act} label=${`Restart ${runs.length}`} danger typed=${typed}
    question=${`Restart the tasks of ${these}, in place?`}
    run=${() => each(runs, restarted)} />
    <${Act} label=${`Stop ${runs.length}`} danger typed=${typed} question=${`Stop ${these}? Each is placed again, perhaps elsewhere.`}
    run=${() => each(runs, stopped)} />`}</div>
  <${Table} rows=${rows}
  heads=${["Allocation", "State", "Name", "Node", "*Version", "Age"]}
  none=${all.length ? "No allocation matches the filter." : "There is no allocation."} row=${(a) => html`
  <tr key=${a.ID}><td class="num"><a href=${allocHref(a.ID)}>${a.ID.slice(0, 8)}</a></td>
  <td><${State} word=${a.ClientStatus} /></td><td class="name">${plain(a.Name)}</td>
  <td><a href=${nodeHref(a.NodeID)}>${plain(a.NodeName || a.NodeID.slice(0, 8))}</a></td>
  <td class="wide num">${a.JobVersion}</td><td class="num"><${Age} at=${a.CreateTime} /></td></tr>`} />`;
}
