import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { read, useEvery, useLive, write } from "../lib/api.js";
import { plain, shortly, span, unplaced } from "../lib/format.js";
import { devices } from "../lib/devices.js";
import { doubles, orphans } from "../lib/doubles.js";
import { lanes } from "../lib/lanes.js";
import { allocHref, execHref, filesHref, jobHref, nodeHref, slotHref } from "../lib/routes.js";
import { Act, Age, Cli, Loaded, Search, State, Table, Title, useFilter } from "../lib/parts.js";
import { Allocs } from "./jobs.js";
import { Logs } from "./log.js";
import { Doubles, Orphans, SWEPT_MS } from "./orphans.js";
import { Usage } from "./trends.js";

export function Allocation({ id, task }) {
  const path = `/v1/allocation/${encodeURIComponent(id)}`;
  const live = useLive([path]);
  return html`<${Loaded} live=${live}>${([a]) => {
    const tasks = Object.entries(a.TaskStates ?? {});
    const shown = task || tasks[0]?.[0] || "";
    return html`<${Title}>${plain(a.Name)}<//><div class="box"><dl>
      <dt>State</dt><dd><${State} word=${a.ClientStatus} /> ${plain(a.ClientDescription)}</dd>
      <dt>Job</dt><dd><a rel="up" href=${jobHref(a.JobID, a.Namespace)}>${plain(a.JobID)}</a>, version ${a.Job?.Version}</dd>
      <dt>Node</dt><dd><a href=${nodeHref(a.NodeID)}>${plain(a.NodeName)}</a></dd>
      <dt>Age</dt><dd><${Age} at=${a.CreateTime} /></dd>
      ${a.PreviousAllocation && html`<dt>Replaces</dt><dd><a href=${allocHref(a.PreviousAllocation)}>
        ${a.PreviousAllocation.slice(0, 8)}</a></dd>`}
      ${a.NextAllocation && html`<dt>Replaced by</dt><dd><a href=${allocHref(a.NextAllocation)}>
        ${a.NextAllocation.slice(0, 8)}</a></dd>`}</dl></div>
      <div class="tools"><${Act} label="Restart" question=${`Restart the tasks of ${a.Name} in place?`}
        run=${() => write(`/v1/client/allocation/${a.ID}/restart`, { AllTasks: false, TaskName: "" })} />
        <${Act} label="Stop" danger question=${`Stop ${a.Name}? It is placed again, perhaps elsewhere.`}
        run=${() => write(`${path}/stop`, {})} /><a data-key="f" href=${filesHref(a.ID, "/")}>Files</a>${tasks.filter(([, t]) =>
        t.State === "running").map(([name]) => html`<a key=${name} data-key="x" href=${execHref(a, name)}>Exec in ${plain(name)}</a>`)}
      </div>
      ${a.ClientStatus === "running" && html`<${Usage} alloc=${a} />`}
      <h2>What happened</h2><${Table} heads=${["When", "Task", "Event", "What"]} none="Nothing yet."
        rows=${tasks.flatMap(([name, t]) => (t.Events ?? []).map((e) => ({ ...e, name }))).sort((x, y) => y.Time - x.Time)}
        row=${(e) => html`<tr><td class="num"><${Age} at=${e.Time} past /></td><td>${plain(e.name)}</td>
          <td>${plain(e.Type)}</td><td>${plain(e.DisplayMessage || e.Message)}</td></tr>`} />
      <h2>Logs</h2><div class="tabs">${tasks.map(([name]) => html`<a href=${`${allocHref(id)}/${encodeURIComponent(name)}/logs`}
        aria-current=${name === shown ? "page" : null}>${plain(name)}</a>`)}</div>
      ${shown && html`<${Logs} alloc=${a.ID} task=${shown} key=${shown} />`}
      <${Cli} line=${`drover alloc status ${a.ID}`} raw=${path} />`;
  }}<//>`;
}

export function Clients() {
  const live = useLive(["/v1/nodes"]);
  const [filter, setFilter] = useFilter();
  return html`<${Title}>Clients<//><div class="tools"><${Search} value=${filter} onInput=${setFilter} /></div>
    <${Loaded} live=${live}>${([nodes]) => html`<${Table} none="No node matches."
      rows=${nodes.filter((n) => `${n.Name} ${n.ID} ${n.Status} ${n.NodePool} ${n.Datacenter}`.includes(filter))}
      heads=${["Node", "State", "Scheduling", "*Pool", "*Datacenter", "*Address"]} row=${(n) => html`<tr key=${n.ID}>
      <td class="name"><a href=${nodeHref(n.ID)}>${plain(n.Name)}</a></td><td><${State} word=${n.Status} /></td>
      <td><${State} word=${n.Drain ? "draining" : n.SchedulingEligibility} /></td><td class="wide">${plain(n.NodePool)}</td>
      <td class="wide">${plain(n.Datacenter)}</td><td class="wide">${plain(n.Address)}</td></tr>`} />`}<//>
    <${Cli} line="drover node status" raw="/v1/nodes" />`;
}

const FATES = { "handed over": ["good", "handed over, its remote tasks go on"],
  unmanaged: ["warn", "no manager for now, its remote tasks go on"], moved: ["warn", "interrupted, starts again"],
  waits: ["bad", "interrupted, waits for room"], ends: ["idle", "ends"], stays: ["idle", "stays"] };

/** What becomes of a node's allocations if it drains, or is lost: asked for, never guessed. */
function IfGone({ path, name }) {
  const [shown, show] = useState(null);
  const look = async (event, words) => {
    try {
      show({ words, answer: await read(`${path}/preview?event=${event}`) });
    } catch (error) {
      show({ words, error });
    }
  };
  const allocs = shown?.answer?.Allocs ?? [];
  const why = [...new Set(allocs.filter((a) => a.Failure).flatMap((a) => unplaced(a.Failure)))];
  return html`<h2>If it goes</h2><div class="tools">
    <button onClick=${() => look("drain", "is drained")}>If it is drained</button>
    <button onClick=${() => look("lost", "dies now")}>If it dies now</button></div>
    ${shown?.error && html`<p class="bad" role="alert">${plain(shown.error.message)}</p>`}
    ${shown?.answer && html`<p role="status">${plain(`If ${name} ${shown.words}:`)}</p>
      <${Table} heads=${["Allocation", "What becomes of it", "Next node"]} none="It has no allocation." rows=${allocs}
      row=${(a) => html`<tr key=${a.ID}><td class="name"><a href=${allocHref(a.ID)}>${plain(a.Name)}</a></td>
      <td class=${FATES[a.Fate]?.[0] ?? ""}>${FATES[a.Fate]?.[1] ?? plain(a.Fate)}</td>
      <td>${plain(a.NextNodeName || "–")}</td></tr>`} />
      ${why.map((line) => html`<p>${plain(line)}</p>`)}`}`;
}

export function Client({ id }) {
  const path = `/v1/node/${encodeURIComponent(id)}`;
  const live = useLive([path, `${path}/allocations`]);
  return html`<${Loaded} live=${live}>${([n, allocs]) => html`<${Title}>${plain(n.Name)}<//>
    <div class="box"><dl><dt>State</dt><dd><${State} word=${n.Status} /> ${plain(n.StatusDescription)}</dd>
    <dt>Scheduling</dt><dd><${State} word=${n.DrainStrategy ? "draining" : n.SchedulingEligibility} /></dd>
    ${n.DrainStrategy && html`<dt>Drain</dt><dd>${allocs.filter((a) => a.ClientStatus === "running").length} of
      ${allocs.length} allocations still run</dd>`}
    <dt>Id</dt><dd>${n.ID}</dd><dt>Pool</dt><dd>${plain(n.NodePool)}</dd></dl></div>
    <div class="tools">${n.DrainStrategy ? html`<${Act} label="End drain" question="End the drain of this node?"
      run=${() => write(`${path}/drain`, { DrainSpec: null, MarkEligible: true })} />` : html`<${Act} label="Drain" danger
      question=${`Drain ${n.Name}? Its allocations move to other nodes within an hour.`} run=${() =>
        write(`${path}/drain`, { DrainSpec: { Deadline: 3600e9, IgnoreSystemJobs: false } })} />`}</div>
    <h2>Drivers</h2><${Table} heads=${["Driver", "State", "Why"]} none="It has no driver."
      rows=${Object.entries(n.Drivers ?? {}).filter(([, d]) => d.Detected)} row=${([name, d]) => html`<tr key=${name}>
      <td class="name">${plain(name)}</td><td><${State} word=${d.Healthy ? "healthy" : "failed"} /></td>
      <td>${plain(d.HealthDescription)}</td></tr>`} />
    ${n.NodeResources?.Devices?.length > 0 && html`<h2>Devices</h2>
      <${Table} heads=${["Device", "Id", "State", "Used by"]} none="Its plugins offer none." rows=${devices(n, allocs)}
      row=${(d) => html`<tr key=${`${d.name} ${d.id}`}>
      <td class="name">${plain(d.name)}</td><td>${plain(d.id)}</td>
      <td><${State} word=${d.healthy ? "healthy" : "failed"} /> ${plain(d.why)}</td>
      <td>${d.alloc ? html`<a href=${allocHref(d.alloc.ID)}>${plain(d.alloc.Name)}</a>` : "–"}</td></tr>`} />`}
    <h2>Allocations</h2><${Allocs} allocs=${allocs} /><${IfGone} path=${path} name=${n.Name} />
    <${Cli} line=${`drover node status ${n.ID}`} raw=${path} />`}<//>`;
}

/** Counts of tasks, which the words of their rows are found by. */
const FILTERS = ["unmanaged", "unknown", "stopping"];

export function Remote() {
  const live = useLive(["/v1/remote/tasks?namespace=*"]);
  const swept = useEvery("/v1/remote/unbound", SWEPT_MS);
  const [filter, setFilter] = useFilter();
  return html`<${Title}>Remote tasks<//><${Loaded} live=${live}>${([tasks]) => {
    const sweeps = swept.data?.[0] ?? [];
    const lone = orphans(sweeps, tasks);
    const counts = [["unmanaged", tasks.filter((t) => t.Unmanaged).length],
      ["unknown", tasks.filter((t) => t.Observed?.State === "Unknown").length],
      ["stopping", tasks.filter((t) => t.Desired === "stop").length],
      ["orphaned instances", lone.length], ["duplicates", doubles(lone).length],
      ["providers not reached", sweeps.filter((s) => s.Error).length]];
    const words = (t) => `${t.SlotName} ${t.ProviderId} ${t.Driver} ${t.ManagerName} ${t.Observed?.State}
      ${t.Unmanaged ? "unmanaged" : ""} ${t.Desired === "stop" ? "stopping" : ""}`.toLowerCase();
    return html`<div class="counts">${counts.map(([word, n]) => (n && FILTERS.includes(word) ?
        html`<button class="count warn" onClick=${() => setFilter(word)}><b>${n}</b>${word}</button>` :
        html`<div class=${`count ${n ? "warn" : ""}`}><b>${n}</b>${word}</div>`))}</div>
      <div class="tools"><${Search} value=${filter} onInput=${setFilter} /></div>
      <${Table} rows=${tasks.filter((t) => words(t).includes(filter.toLowerCase()))}
      heads=${["Slot", "Observed", "Manager", "Epoch", "*Provider's name", "*Driver"]} none="There is no remote task here."
      row=${(t) => html`<tr key=${t.SlotName}><td class="name"><a href=${slotHref(t.SlotName)}>${plain(t.SlotName)}</a></td>
      <td><${State} word=${t.Observed?.State} /></td><td>${t.Unmanaged ? html`<${State} word="unmanaged" />` :
        plain(t.ManagerName)}</td><td class="num">${t.Epoch}</td><td class="wide">${plain(t.ProviderId)}</td>
      <td class="wide">${plain(t.Driver)}</td></tr>`} />
      ${swept.error && html`<p class="warn">${plain(`Orphaned instances are not known: ${swept.error.message}`)}</p>`}
      ${lone.length > 0 && html`<h2>Orphaned instances</h2><p class="soft">A runtime has them, and no record knows
        them.</p><${Orphans} all=${lone} />`}
      ${sweeps.filter((s) => s.Error).map((s) => html`<div class="box bad">${plain(`${s.Driver} ${s.Provider}: ${s.Error}`)}
        </div>`)}`;
  }}<//><${Cli} line="drover remote status" raw="/v1/remote/tasks?namespace=*" />`;
}

export function Slot({ id }) {
  const path = `/v1/remote/task/${id.split("/").map(encodeURIComponent).join("/")}`;
  const live = useLive([path]);
  return html`<${Loaded} live=${live}>${([t]) => html`<${Title}>${plain(t.SlotName)}<//><${Doubles} task=${t} />
    <${Bars} task=${t} /><div class="box"><dl>
    <dt>Observed</dt><dd><${State} word=${t.Observed?.State} /></dd>
    <dt>Manager</dt><dd>${t.Unmanaged ? html`<${State} word="unmanaged" />` : plain(t.ManagerName)}</dd>
    <dt>Epoch</dt><dd>${t.Epoch}</dd><dt>Driver</dt><dd>${plain(t.Driver)}</dd>
    <dt>Provider's name</dt><dd>${plain(t.ProviderId) || "–"}</dd><dt>Incarnation</dt><dd>${t.IncarnationID}</dd>
    <dt>Allocation</dt><dd><a href=${allocHref(t.AllocID)}>${String(t.AllocID).slice(0, 8)}</a></dd></dl></div>
    <div class="tools"><${Act} label="Restart" danger question=${`Replace the instance of ${t.SlotName}?`}
      run=${() => write(path.replace("/task/", "/restart/"), {})} /></div>
    <h2>What happened</h2><${Table} heads=${["When", "Epoch", "What"]} none="Nothing yet."
      rows=${[...(t.History ?? [])].reverse()} row=${(e) => html`<tr><td class="num"><${Age} at=${e.Time} past /></td>
      <td class="num">${e.Epoch}</td><td>${plain(e.Message)}</td></tr>`} />
    <${Cli} line=${`drover remote status ${t.SlotName}`} raw=${path} />`}<//>`;
}

/** Names of nodes by id, as far as they can be read: each is asked for once. */
function useNames(ids) {
  const [names, set] = useState({});
  const wanted = [...new Set(ids)].sort().join();
  useEffect(() => {
    const stop = new AbortController();
    wanted.split(",").filter((id) => id && !names[id]).forEach((id) =>
      // One that is gone, or may not be seen, keeps its id.
      read(`/v1/node/${encodeURIComponent(id)}`, stop.signal).then((node) =>
        set((old) => ({ ...old, [id]: node.Name })), () => {}));
    return () => stop.abort();
  }, [wanted]);
  return (id) => names[id] ?? `node ${id.slice(0, 8)}`;
}

/** The instance as one bar, the managers below it. The table of events says the same in words. */
function Bars({ task }) {
  const all = lanes(task, Date.now());
  const name = useNames(all.lanes.map((lane) => lane.node).filter(Boolean));
  const x = (ms) => ((ms - all.from) / Math.max(1, all.to - all.from)) * 1000;
  const high = 52 + all.lanes.length * 28;
  return html`<div class="box"><svg class="lanes" viewBox=${`0 0 1000 ${high}`} role="img"
    aria-label="The instance and its managers over time">
    <rect class="instance" x="0" y="4" width="1000" height="26" rx="4" />
    <text class="onbar" x="8" y="22">incarnation ${String(task.IncarnationID).slice(0, 8)} ${span(all.to - all.from)}</text>
    ${all.gaps.map((gap) => html`<rect class="gap" x=${x(gap.from)} y="36" height=${high - 44}
      width=${Math.max(3, x(gap.to) - x(gap.from))} />`)}
    ${all.lanes.map((lane, i) => {
      const [left, right, y] = [x(lane.from), x(lane.to), 44 + i * 28];
      const [inside, before] = [right - left > 180, left > 700];
      const by = lane.node ? `${plain(name(lane.node))}, ` : "";
      return html`<rect class="lane" x=${left} y=${y} height="20" rx="3" width=${Math.max(3, right - left)} />
        <text class=${inside ? "onbar" : "beside"} x=${inside ? left + 8 : before ? left - 8 : right + 8} y=${y + 15}
          text-anchor=${before && !inside ? "end" : "start"}>${`epoch ${lane.epoch}, ${by}${span(lane.to - lane.from)}`}
          <title>${plain(lane.message)}</title></text>`;
    })}</svg>
    ${all.gaps.map((gap, i) => html`<p class="warn">▲ unmanaged for ${shortly(gap.to - gap.from)}${all.now &&
      i === all.gaps.length - 1 ? " until now; the instance goes on" : ", then adopted; the instance went on"}</p>`)}</div>`;
}
