// An allocation: what happened in order, what it uses, what it says.
import { html } from "../lib/html.js";
import { useEvery, useLive, write } from "../lib/api.js";
import { plain, span } from "../lib/format.js";
import { scores } from "../lib/scores.js";
import { delays } from "../lib/slots.js";
import { taskLanes } from "../lib/tasklanes.js";
import { allocHref, execHref, filesHref, jobHref, logHref, nodeHref, slotHref } from "../lib/routes.js";
import { Act, Age, Cli, Loaded, State, Table, Title } from "../lib/parts.js";
import { Logs } from "./log.js";
import { Usage } from "./trends.js";

export function Allocation({ id, task }) {
  const path = `/v1/allocation/${encodeURIComponent(id)}`;
  const live = useLive([path]);
  return html`<${Loaded} live=${live}>${([a]) => {
    const tasks = Object.keys(a.TaskStates ?? {});
    const shown = task || tasks[0] || "";
    return html`<${Title}>${plain(a.Name)}<//><${Facts} a=${a} /><${Orders} a=${a} path=${path} />
      ${a.ClientStatus === "running" && html`<${Usage} alloc=${a} />`}
      ${a.ClientStatus === "running" && checked(a) && html`<${Checks} alloc=${a} />`}
      <h2>What happened</h2><${Lanes} states=${a.TaskStates} /><${Events} states=${a.TaskStates} />
      <h2>Logs</h2><div class="tabs">${tasks.map((name) => html`<a key=${name} href=${logHref(id, name)}
        aria-current=${name === shown ? "page" : null}>${plain(name)}</a>`)}</div>
      ${shown && html`<${Logs} alloc=${a} task=${shown} key=${shown} />`}
      <${Placed} alloc=${a} /><${Cli} line=${`drover alloc status ${a.ID}`} raw=${path} />`;
  }}<//>`;
}

const Facts = ({ a }) => html`<div class="box"><dl>
  <dt>State</dt><dd><${State} word=${a.ClientStatus} /> ${plain(a.ClientDescription)}</dd>
  <dt>Job</dt><dd><a rel="up" href=${jobHref(a.JobID, a.Namespace)}>${plain(a.JobID)}</a>, version${" "}
    ${a.Job?.Version}</dd>
  <dt>Node</dt><dd><a href=${nodeHref(a.NodeID)}>${plain(a.NodeName)}</a></dd>
  <dt>Age</dt><dd><${Age} at=${a.CreateTime} /></dd>
  <${Chain} alloc=${a} />${(a.RemoteTasks ?? []).map((r) => html`<dt key=${r.SlotName}>Remote task</dt><dd>
    <a href=${slotHref(r.SlotName)}>${plain(r.SlotName)}</a>, ${r.Unmanaged ? "managed by no node" :
    `managed by ${plain(r.ManagerName)}`}, epoch ${r.Epoch}</dd>`)}</dl></div>`;

/** What can be done to it: to one that has ended nothing but to look. */
function Orders({ a, path }) {
  const ended = ["complete", "failed", "lost"].includes(a.ClientStatus);
  const running = Object.entries(a.TaskStates ?? {}).filter(([, t]) => t.State === "running").map(([name]) => name);
  return html`<div class="tools">${!ended && html`<${Act} label="Restart"
      question=${`Restart the tasks of ${a.Name} in place?`}
      run=${() => write(`/v1/client/allocation/${a.ID}/restart`, { AllTasks: false, TaskName: "" })} />
    <${Act} label="Stop" danger question=${`Stop ${a.Name}? It is placed again, perhaps elsewhere.`}
      run=${() => write(`${path}/stop`, {})} />
    ${delays(a.Job) && html`<${Act} label="Stop without delay" danger
      question=${`Stop ${a.Name} and leave its shutdown_delay out? It is placed again, perhaps elsewhere.`}
      run=${() => write(`${path}/stop?no_shutdown_delay=true`, {})} />`}`}
    <a data-key="f" href=${filesHref(a.ID, "/")}>Files</a>
    ${running.map((name) => html`<a key=${name} data-key="x" href=${execHref(a, name)}>Exec in ${plain(name)}</a>`)}
    </div>`;
}

function Events({ states }) {
  const rows = Object.entries(states ?? {}).flatMap(([name, t]) => (t.Events ?? []).map((e) => ({ ...e, name })));
  return html`<${Table} heads=${["When", "Task", "Event", "What"]} none="Nothing yet."
    rows=${rows.sort((x, y) => y.Time - x.Time)} row=${(e) => html`<tr><td class="num"><${Age} at=${e.Time} past /></td>
    <td>${plain(e.name)}</td><td>${plain(e.Type)}</td><td>${plain(e.DisplayMessage || e.Message)}</td></tr>`} />`;
}

/** Letters of a name that fit beside a lane. */
const SHORT = 20;

/** The tasks on one axis: when each ran, and every event. The table below says the same in words. */
function Lanes({ states }) {
  const all = taskLanes(states, Date.now());
  const wide = Math.max(1, all.to - all.from);
  const x = (ms) => 160 + ((ms - all.from) / wide) * 836;
  if (!all.lanes.some((lane) => lane.ticks.length)) return null;
  const ran = (s) => `ran for ${span(s.to - s.from)}${s.ends ? `: ${plain(s.ends.words)}` : ""}`;
  const short = (name) => (name.length > SHORT ? `${name.slice(0, SHORT - 1)}…` : name);
  return html`<div class="box"><div class="scrolls" tabindex="0" role="region" aria-label="Lanes">
    <svg class="lanes" viewBox=${`0 0 1000 ${12 + all.lanes.length * 28}`} role="img"
    aria-label=${`What the tasks did within ${span(wide)}`}>${all.lanes.map((lane, i) => {
      const y = 6 + i * 28;
      return html`<g key=${lane.name}><text x="0" y=${y + 15}>${plain(short(lane.name))}
          <title>${plain(lane.name)}</title></text>
        <rect class="rest" x="160" y=${y + 8} width="836" height="4" rx="2" />
        ${lane.spans.map((s) => html`<rect class="lane" x=${x(s.from)} y=${y} height="20" rx="3"
          width=${Math.max(3, x(s.to) - x(s.from))}><title>${ran(s)}</title></rect>`)}
        ${lane.ticks.map((t) => html`<rect class="tick" x=${x(t.at) - 1} y=${y + 2} width="2" height="16"><title>${
          plain(`${t.type}: ${t.words}`)}</title></rect>`)}</g>`;
    })}</svg></div><p class="soft">${span(wide)} in all</p></div>`;
}

/** The attempts before this one, as far as they are kept, and the one after it. */
function Chain({ alloc }) {
  const events = alloc.RescheduleTracker?.Events ?? [];
  const before = events.length ? events.map((e) => e.PrevAllocID) : [alloc.PreviousAllocation].filter(Boolean);
  if (!before.length && !alloc.NextAllocation) return null;
  const link = (id) => html`<a key=${id} href=${allocHref(id)}>${id.slice(0, 8)}</a>`;
  return html`<dt>Attempts</dt><dd>${before.map((id) => html`${link(id)} → `)}<b>this one</b>${alloc.NextAllocation &&
    html` → ${link(alloc.NextAllocation)}`}</dd>`;
}

const CHECKED_MS = 5000;

/** Whether services of its group, or of a task in it, have checks. */
function checked(alloc) {
  const group = (alloc.Job?.TaskGroups ?? []).find((g) => g.Name === alloc.TaskGroup);
  return [group, ...(group?.Tasks ?? [])].some((of) => (of?.Services ?? []).some((s) => s.Checks?.length));
}

/** The checks of its services, which its node makes. */
function Checks({ alloc }) {
  const live = useEvery(`/v1/client/allocation/${alloc.ID}/checks`, CHECKED_MS);
  const word = (status) => ({ success: "healthy", failure: "failed" }[status] ?? status);
  return html`<h2>Checks</h2><${Loaded} live=${live}>${([all]) => html`<${Table} none="None has been made yet."
    rows=${Object.values(all)} heads=${["Check", "Service", "State", "When", "What it says"]} row=${(c) => html`
    <tr key=${c.ID}><td class="name">${plain(c.Check)}</td><td>${plain(c.Service)}</td>
    <td><${State} word=${word(c.Status)} /></td><td class="num"><${Age} at=${c.Timestamp * 1e9} past /></td>
    <td>${plain(c.Output)}</td></tr>`} />`}<//>`;
}

/** Why this node: the nodes that were scored, and what went into each score. */
function Placed({ alloc }) {
  const { sentence, parts, rows } = scores(alloc.Metrics);
  if (!rows.length) return null;
  return html`<h2 data-key="e" data-key-title="Why this node" tabindex="-1">Why this node</h2>
    <p class="soft">${plain(sentence)}</p><${Table} none="" rows=${rows} heads=${["Node", "Score", ...parts]}
    row=${(n) => html`<tr key=${n.id}><td class="name"><a href=${nodeHref(n.id)}>${n.id.slice(0, 8)}</a>${
    n.id === alloc.NodeID && html`<span class="soft"> taken</span>`}</td><td class="num"><b>${n.score}</b></td>
    ${parts.map((part) => html`<td class="num">${n.parts[part] ?? "–"}</td>`)}</tr>`} />`;
}
