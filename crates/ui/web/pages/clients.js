// Nodes: whether each can take work, and what becomes of its allocations if it goes.
import { useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { read, useLive, write } from "../lib/api.js";
import { plain, unplaced } from "../lib/format.js";
import { devices } from "../lib/devices.js";
import { loads } from "../lib/loads.js";
import { allocHref, monitorHref, nodeHref } from "../lib/routes.js";
import { Act, Cli, Loaded, Search, State, Table, Title, useFilter } from "../lib/parts.js";
import { Bar } from "./cluster.js";
import { Allocs, MANY_ENDS } from "./jobs.js";

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

export const FATES = { "handed over": ["good", "handed over, its remote tasks go on"],
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
  const live = useLive([path, `${path}/allocations?stubs=true`]);
  return html`<${Loaded} live=${live}>${([n, allocs]) => html`<${Title}>${plain(n.Name)}<//>
    <div class="box"><dl><dt>State</dt><dd><${State} word=${n.Status} /> ${plain(n.StatusDescription)}</dd>
    <dt>Scheduling</dt><dd><${State} word=${n.DrainStrategy ? "draining" : n.SchedulingEligibility} /></dd>
    ${n.DrainStrategy && html`<dt>Drain</dt><dd>${allocs.filter((a) => a.ClientStatus === "running").length} of
      ${allocs.length} allocations still run</dd>`}
    <${Packed} node=${n} allocs=${allocs} /><dt>Id</dt><dd>${n.ID}</dd><dt>Pool</dt><dd>${plain(n.NodePool)}</dd></dl></div>
    <div class="tools">${n.DrainStrategy ? html`<${Act} label="End drain" question="End the drain of this node?"
      run=${() => write(`${path}/drain`, { DrainSpec: null, MarkEligible: true })} />` : html`<${Act} label="Drain" danger
      question=${`Drain ${n.Name}? Its ${allocs.filter((a) => a.ClientStatus === "running").length} running
      allocations move to other nodes within an hour.`} typed=${allocs.filter((a) => a.ClientStatus === "running").length >
      MANY_ENDS ? n.Name : ""} run=${() =>
        write(`${path}/drain`, { DrainSpec: { Deadline: 3600e9, IgnoreSystemJobs: false } })} />
      <${Act} label=${n.SchedulingEligibility === "eligible" ? "Take no more work" : "Take work"} question=${
        n.SchedulingEligibility === "eligible" ? `Place nothing more on ${n.Name}? What runs there goes on.` :
        `Place work on ${n.Name} again?`} run=${() => write(`${path}/eligibility`, { NodeID: n.ID,
        Eligibility: n.SchedulingEligibility === "eligible" ? "ineligible" : "eligible" })} />`}
      <a href=${monitorHref("node", n.ID)}>Log of its agent</a></div>
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

/** How full the node is. */
function Packed({ node, allocs }) {
  const [load] = loads([node], allocs);
  return html`<dt>Taken</dt><dd><div class="pair"><div><${Bar} used=${load.cpu} of=${load.cpuTotal} unit="MHz" /></div>
    <div><${Bar} used=${load.memory} of=${load.memoryTotal} unit="MiB" /></div></div></dd>`;
}
