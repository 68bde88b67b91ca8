// Parts of a job's page that are tables of their own: where it is, what it may read, one of its groups.
import { html } from "../lib/html.js";
import { useLive } from "../lib/api.js";
import { plain } from "../lib/format.js";
import { nodeHref, variableHref } from "../lib/routes.js";
import { nodesOf } from "../lib/slots.js";
import { Age, Loaded, State, Table } from "../lib/parts.js";

/** The nodes that have allocations of the job, with their states: of a system job, where it is. */
export const NodesOf = ({ allocs }) => html`<${Table} rows=${nodesOf(allocs)} none="No node has had an allocation of it."
  heads=${["Node", "Allocations"]} row=${(n) => html`<tr key=${n.id}><td class="name"><a href=${nodeHref(n.id)}>${
  plain(n.name)}</a></td><td>${Object.entries(n.states).map(([word, count]) => html`<span key=${word}>${count}${" "}
  <${State} word=${word} /> </span>`)}</td></tr>`} />`;

/** The variables that tasks of the job may read with their own identity. */
export function VariablesOf({ id, namespace }) {
  const ns = encodeURIComponent(namespace);
  const own = `nomad/jobs/${id}`;
  const live = useLive([`/v1/vars?prefix=nomad/jobs&namespace=${ns}`]);
  return html`<p class="soft">Tasks of the job read these with their own identity, and what policies for the job
      allow.</p><${Loaded} live=${live}>${([given]) => html`<${Table} heads=${["Path", "Who reads it", "Changed"]}
    rows=${given.filter((v) => v.Path === "nomad/jobs" || v.Path === own || v.Path.startsWith(`${own}/`))}
    none="The job may read no variable." row=${(v) => {
      const [group, task] = v.Path === "nomad/jobs" ? [] : v.Path.slice(own.length + 1).split("/").filter(Boolean);
      const who = v.Path === "nomad/jobs" ? "every job" : task ? `task ${task} of group ${group}` : group ?
        `group ${group}` : "all tasks of the job";
      return html`<tr key=${v.Path}><td class="name"><a href=${variableHref(v.Path, v.Namespace)}>${plain(v.Path)}</a></td>
      <td>${plain(who)}</td><td class="num"><${Age} at=${v.ModifyTime} past /></td></tr>`;
    }} />`}<//>`;
}

/** One group: how many are wanted, and who has changed that. */
export function GroupOf({ job, name, path, ns }) {
  const live = useLive([`${path}/scale${ns}`]);
  const group = (job.TaskGroups ?? []).find((g) => g.Name === name);
  if (!group) return html`<div class="box soft">The job has no group ${plain(name)}.</div>`;
  return html`<div class="box"><dl><dt>Group</dt><dd>${plain(name)}</dd><dt>Wanted</dt><dd>${group.Count}</dd>
    <dt>Tasks</dt><dd>${(group.Tasks ?? []).map((t) => `${plain(t.Name)} (${plain(t.Driver)})`).join(", ")}</dd></dl></div>
    <h2>Scaled</h2><${Loaded} live=${live}>${([status]) => html`<${Table} heads=${["When", "From", "To", "Why"]}
    none="Its count has not been changed by scaling." rows=${status.TaskGroups?.[name]?.Events ?? []} row=${(e) => html`
    <tr><td class="num"><${Age} at=${e.Time} past /></td><td class="num">${e.PreviousCount}</td>
    <td class="num">${e.Count ?? "–"}</td><td class=${e.Error ? "bad" : ""}>${plain(e.Message)}</td></tr>`} />`}<//>`;
}
