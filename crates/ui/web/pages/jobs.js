import { useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { useLive, write } from "../lib/api.js";
import { plain, unplaced } from "../lib/format.js";
import { allocWords, newestFirst, talking } from "../lib/allocs.js";
import { faults, faulty, folded, tally, unfolded, words } from "../lib/jobs.js";
import { allocHref, editHref, jobHref, nodeHref } from "../lib/routes.js";
import { Children } from "./children.js";
import { ServicesOf } from "./cluster.js";
import { Definition } from "./definition.js";
import { Deployments } from "./deployments.js";
import { Act, Age, Cli, Diff, Loaded, Search, State, Table, Title, useFilter } from "../lib/parts.js";

export function Jobs() {
  const live = useLive(["/v1/jobs?namespace=*"], ["/v1/jobs?namespace=*&per_page=100"]);
  const [filter, setFilter] = useFilter();
  const [all, showAll] = useState(false);
  return html`<${Title}>Jobs<//>
    <div class="tools"><${Search} value=${filter} onInput=${setFilter} /><label><input type="checkbox" checked=${all}
      onChange=${(e) => showAll(e.target.checked)} /> Also children</label><a href="/ui/jobs/run">Run a job</a></div>
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
          <td><${State} word=${job.Stop ? "stopped" : job.Status} /></td><td class="num">${tally(job).Running}</td>
          <td>${faults(job).map(([word, kind, n]) => html`<span class=${`state ${kind}`}>${n} ${word} </span>`)}
            ${children.length > 0 && html`<a href=${jobHref(job.ID, job.Namespace, "dispatch")}>children: ${children
              .map(([word, n]) => `${n} ${word.toLowerCase()}`).join(", ")}</a>`}</td>
          <td class="wide">${job.Type}</td><td class="wide">${plain(job.Namespace)}</td></tr>`; }} />`;
    }}<//><${Cli} line="drover job status" raw="/v1/jobs?namespace=*" />`;
}

const TABS = [["", "Overview"], ["allocations", "Allocations"], ["deployments", "Deployments"],
  ["evaluations", "Evaluations"], ["versions", "Versions"], ["services", "Services"], ["definition", "Definition"]];
const OF_PARENTS = [["dispatch", "Children"]];
const isParent = (job) => Boolean(job?.Periodic || job?.ParameterizedJob);

export function Job({ id, namespace, tab }) {
  const path = `/v1/job/${encodeURIComponent(id)}`;
  const ns = `?namespace=${encodeURIComponent(namespace)}`;
  const parts = { "": ["allocations", "evaluations"], allocations: ["allocations"], deployments: ["deployments"],
    evaluations: ["evaluations"], versions: ["versions"] }[tab] ?? [];
  const short = { allocations: "&task_states=false", versions: "&diffs=true" };
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
      if (tab === "versions") return html`<${Versions} job=${job} given=${more[0]} path=${path} ns=${ns} />`;
      if (tab === "deployments") return html`<${Deployments} all=${more[0] ?? []} />`;
      if (tab === "evaluations") return html`<${Evals} evals=${more[0] ?? []} />`;
      if (tab === "allocations") return html`<${Allocs} allocs=${more[0] ?? []} />`;
      const talks = talking(job, more[0] ?? []);
      const waiting = (more[1] ?? []).find((e) => e.Status === "blocked");
      return html`<div class="box"><dl><dt>State</dt><dd><${State} word=${job.Stop ? "stopped" : job.Status} /></dd>
        <dt>Type</dt><dd>${job.Type}, priority ${job.Priority}</dd><dt>Version</dt><dd>${job.Version}</dd>
        <dt>Groups</dt><dd>${(job.TaskGroups ?? []).map((g) => `${plain(g.Name)} × ${g.Count}`).join(", ")}</dd></dl></div>
        ${waiting && html`<${Why} failed=${waiting.FailedTGAllocs} />`}
        <div class="tools">${job.Stop ? html`<span class="soft">The job is stopped.</span>
          <${Act} label="Start" question=${`Start ${id} again, as version ${job.Version} is?`} run=${() =>
            write(`/v1/jobs${ns}`, { Job: { ...job, Stop: false }, EnforceIndex: true, JobModifyIndex: job.JobModifyIndex })} />
          <${Act} label="Purge" danger question=${`Forget ${id}, its versions and its allocations?`} run=${async () => {
            await write(`${path}${ns}&purge=true`, undefined, "DELETE");
            location.assign("/ui/jobs");
          }} />` : html`<${Act} label="Stop" danger
          question=${`Stop ${id}? Its allocations end.`} run=${() => write(path + ns, undefined, "DELETE")} />
          <${Act} label="Restart all" danger question=${`Restart the tasks of all running allocations of ${id} in place?`}
            run=${() => Promise.all((more[0] ?? []).filter((a) => a.ClientStatus === "running").map((a) =>
              write(`/v1/client/allocation/${a.ID}/restart`, { AllTasks: false, TaskName: "" })))} />
          <a data-key="x" href=${`/ui/exec/${encodeURIComponent(id)}${ns}`}>Exec</a>`}
          <a href=${editHref(id, namespace)}>Edit</a>${talks && html`
          <a data-key="l" href=${`${allocHref(talks.id)}/${encodeURIComponent(talks.task)}/logs`}>Logs</a>`}
          ${(job.TaskGroups ?? []).map((g) => {
            const count = counts[g.Name] ?? g.Count;
            return html`<label>${plain(g.Name)} <input type="number" min="0" value=${count}
              onInput=${(e) => setCounts({ ...counts, [g.Name]: Number(e.target.value) })} /></label>
              <${Act} label="Scale" question=${`Set the count of ${g.Name} to ${count}?`} run=${() =>
                write(`${path}/scale${ns}`, { Count: count, Target: { Job: id, Group: g.Name },
                  Message: "from the web UI" })} />`;
          })}</div>
        <h2>Allocations</h2><${Allocs} allocs=${more[0] ?? []} />`;
    }}<//><${Cli} line=${`drover job status -namespace ${namespace} ${id}`} raw=${path + ns} />`;
}

/** Each version with what it has changed; an earlier one can be registered again. */
const Versions = ({ job, given, path, ns }) => html`<${Table} none="There is no version."
  heads=${["Version", "Submitted", "Stable", "What it changed", ""]}
  rows=${(given?.Versions ?? []).map((v, i) => ({ ...v, diff: given.Diffs?.[i] }))} row=${(v) => html`
  <tr key=${v.Version}><td class="num">${v.Version}</td><td class="num"><${Age} at=${v.SubmitTime} past /></td>
  <td>${v.Stable ? "yes" : "no"}</td><td>${v.diff ? html`<${Diff} diff=${v.diff} />` :
    html`<span class="soft">the first that is kept</span>`}</td>
  <td>${v.Version === job.Version ? html`<span class="soft">current</span>` : html`<${Act} label="Revert"
    question=${`Register version ${v.Version} of ${job.ID} again?`} run=${() => write(`${path}/revert${ns}`,
      { JobID: job.ID, JobVersion: v.Version })} />`}</td></tr>`} />`;

/** The scheduler's reasons, group by group. */
export const Why = ({ failed }) => html`<div class="box bad"><b>Not everything is placed</b>
  ${Object.entries(failed ?? {}).map(([group, metric]) => html`<p><b>${plain(group)}</b></p>
    <ul>${unplaced(metric).map((line) => html`<li>${plain(line)}</li>`)}</ul>`)}</div>`;

/** From so many rows on, there is a filter. */
const MANY = 20;

export function Allocs({ allocs }) {
  const [filter, setFilter] = useFilter();
  const sought = filter.toLowerCase();
  const all = newestFirst(allocs);
  const rows = filter ? all.filter((a) => allocWords(a).includes(sought)) : all;
  return html`${(filter || all.length > MANY) && html`<div class="tools"><${Search} value=${filter}
    onInput=${setFilter} /></div>`}<${Table} rows=${rows}
  heads=${["Allocation", "State", "Name", "Node", "*Version", "Age"]}
  none=${all.length ? "No allocation matches the filter." : "There is no allocation."} row=${(a) => html`
  <tr key=${a.ID}><td class="num"><a href=${allocHref(a.ID)}>${a.ID.slice(0, 8)}</a></td>
  <td><${State} word=${a.ClientStatus} /></td><td class="name">${plain(a.Name)}</td>
  <td><a href=${nodeHref(a.NodeID)}>${plain(a.NodeName || a.NodeID.slice(0, 8))}</a></td>
  <td class="wide num">${a.JobVersion}</td><td class="num"><${Age} at=${a.CreateTime} /></td></tr>`} />`;
}

export const Evals = ({ evals }) => html`<${Table} rows=${[...evals].sort((a, b) => b.ModifyIndex - a.ModifyIndex)}
  heads=${["Evaluation", "State", "Job", "Trigger", "Why not placed"]} none="There is no evaluation." row=${(e) => html`
  <tr key=${e.ID}><td class="num">${e.ID.slice(0, 8)}</td><td><${State} word=${e.Status} /></td>
  <td class="name">${e.JobID ? html`<a href=${jobHref(e.JobID, e.Namespace)}>${plain(e.JobID)}</a>` : "–"}</td>
  <td>${plain(e.TriggeredBy)}</td><td>${Object.entries(e.FailedTGAllocs ?? {}).map(([group, metric]) => html`
    <div>${plain(`${group}: ${unplaced(metric).join("; ")}`)}</div>`)}</td></tr>`} />`;

export function Evaluations() {
  const live = useLive(["/v1/evaluations?namespace=*"]);
  return html`<${Title}>Evaluations<//><${Loaded} live=${live}>${([evals]) =>
    html`<${Evals} evals=${evals} />`}<//><${Cli} line="drover eval list" raw="/v1/evaluations?namespace=*" />`;
}
