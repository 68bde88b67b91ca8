// What the whole cluster shares: servers, services, variables, and how full the nodes are.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { Refused, useLive, write } from "../lib/api.js";
import { ago, plain } from "../lib/format.js";
import { allocHref, jobHref, nodeHref, variableHref } from "../lib/routes.js";
import { loads } from "../lib/loads.js";
import { Act, Cli, Loaded, Problem, Search, State, Table, Title, useFilter } from "../lib/parts.js";

export function Servers() {
  const live = useLive(["/v1/agent/members", "/v1/status/leader"]);
  return html`<${Title}>Servers<//><${Loaded} live=${live}>${([given, leader]) => html`<${Table}
    rows=${given.Members ?? []} heads=${["Server", "State", "Role", "Address", "*Release", "*Region"]}
    none="No server is known." row=${(m) => {
      const leads = `${m.Addr}:${m.Tags?.port ?? m.Port}` === leader || `${m.Addr}:${m.Port}` === leader;
      return html`<tr key=${m.Name}><td class="name">${plain(m.Name)}</td><td><${State} word=${m.Status} /></td>
      <td>${leads ? html`<b>leads</b>` : html`<span class="soft">follows</span>`}</td>
      <td class="num">${plain(m.Addr)}:${m.Tags?.port ?? m.Port}</td><td class="wide">${plain(m.Tags?.build)}</td>
      <td class="wide">${plain(m.Tags?.region)}</td></tr>`; }} />`}<//>
    <${Cli} line="drover server members" raw="/v1/agent/members" />`;
}

/** The instances of the services of one job, or all services. */
export function Services({ id, namespace }) {
  const [filter, setFilter] = useFilter();
  const ns = encodeURIComponent(namespace ?? "*");
  const path = id ? `/v1/job/${encodeURIComponent(id)}/services?namespace=${ns}` : `/v1/services?namespace=${ns}`;
  const live = useLive([path]);
  const body = html`<${Loaded} live=${live}>${([given]) => {
    const all = id ? given : given.flatMap((n) => (n.Services ?? []).map((s) => ({ ...s, Namespace: n.Namespace })));
    const rows = all.filter((s) => `${s.ServiceName} ${(s.Tags ?? []).join(" ")}`.toLowerCase().includes(filter.toLowerCase()));
    if (!id) return html`<${Table} rows=${rows} heads=${["Service", "Tags", "Namespace"]} none="No service is registered."
      row=${(s) => html`<tr key=${`${s.Namespace}/${s.ServiceName}`}><td class="name">${plain(s.ServiceName)}</td>
      <td>${plain((s.Tags ?? []).join(", "))}</td><td>${plain(s.Namespace)}</td></tr>`} />`;
    return html`<${Table} rows=${rows} heads=${["Service", "Address", "Allocation", "Tags"]} none="The job has no service."
      row=${(s) => html`<tr key=${s.ID}><td class="name">${plain(s.ServiceName)}</td>
      <td class="num">${plain(s.Address)}${s.Port ? `:${s.Port}` : ""}</td>
      <td class="num"><a href=${allocHref(s.AllocID)}>${s.AllocID.slice(0, 8)}</a></td>
      <td>${plain((s.Tags ?? []).join(", "))}</td></tr>`} />`;
  }}<//>`;
  if (id) return body;
  return html`<${Title}>Services<//><div class="tools"><${Search} value=${filter} onInput=${setFilter} /></div>${body}
    <${Cli} line="drover service list" raw=${path} />`;
}

/** Paths alone: whoever lists need not read. */
export function Variables({ id: prefix = "" }) {
  const [filter, setFilter] = useFilter();
  const path = `/v1/vars?namespace=*&prefix=${encodeURIComponent(prefix)}`;
  const live = useLive([path]);
  return html`<${Title}>Variables<//><div class="tools"><${Search} value=${filter} onInput=${setFilter} />
    <a href="/ui/variables/new">New variable</a></div>
    <${Loaded} live=${live}>${([all]) => html`<${Table} rows=${all.filter((v) => v.Path.includes(filter))}
      heads=${["Path", "Namespace", "Changed", "*Locked"]} none=${all.length ? "No variable matches the filter." :
        "There is no variable here that you may list."} row=${(v) => html`<tr key=${`${v.Namespace}/${v.Path}`}>
      <td class="name"><a href=${variableHref(v.Path, v.Namespace)}>${plain(v.Path)}</a></td><td>${plain(v.Namespace)}</td>
      <td class="num">${ago(v.ModifyTime, Date.now())} ago</td><td class="wide">${v.Lock ? "yes" : ""}</td></tr>`} />`}<//>
    <${Cli} line="drover var list" raw=${path} />`;
}

const NEW = { Path: "", Items: { "": "" }, ModifyIndex: 0 };

export function Variable({ id, namespace }) {
  const path = `/v1/var/${encodeURIComponent(id)}?namespace=${encodeURIComponent(namespace)}`;
  const live = useLive([path]);
  return html`<${Title}>${plain(id)}<//><${Loaded} live=${live}>${([v]) => html`<${Edit} variable=${v}
    namespace=${namespace} />`}<//><${Cli} line=${`drover var get -namespace ${namespace} ${id}`} raw=${path} />`;
}

export const NewVariable = () => html`<${Title}>New variable<//><${Edit} variable=${NEW} namespace="default" />`;

/**
 * Items are masked until they are asked for. A write names the index that was read, and what somebody else writes
 * meanwhile is shown beside what is typed: nobody's change is lost unseen.
 */
function Edit({ variable, namespace }) {
  const [base, setBase] = useState(variable);
  const [path, setPath] = useState(variable.Path);
  const [items, change] = useState(Object.entries(variable.Items ?? {}));
  const [typed, setTyped] = useState(false);
  const [open, setOpen] = useState(variable.ModifyIndex === 0);
  const [said, say] = useState(null);
  const newer = variable.ModifyIndex !== base.ModifyIndex;
  const take = (other) => { setBase(other); change(Object.entries(other.Items ?? {})); setTyped(false); };
  useEffect(() => { if (newer && !typed) take(variable); }, [variable.ModifyIndex]);
  const setItems = (next) => { change(next); setTyped(true); };
  const set = (i, part, value) => setItems(items.map((item, n) => (n === i ? (part ? [item[0], value] : [value, item[1]]) : item)));
  const where = (cas) => `/v1/var/${encodeURIComponent(path)}?namespace=${encodeURIComponent(namespace)}&cas=${cas}`;
  const save = async (cas) => {
    say(null);
    try {
      const full = items.filter(([name]) => name !== "");
      if (new Set(full.map(([name]) => name)).size < full.length) throw new Refused(0, "two items have the same name");
      await write(where(cas), { Path: path, Namespace: namespace, Items: Object.fromEntries(full) });
      if (base.ModifyIndex === 0) location.assign(variableHref(path, namespace));
      else setTyped(false);
    } catch (error) {
      const other = base.ModifyIndex === 0 ? `a variable at ${path} exists already; open it to change it` : error.message;
      say(error.status === 409 ? new Refused(409, other) : error);
    }
  };
  return html`${said && html`<${Problem} error=${said} />`}
    ${newer && typed && html`<div class="box bad" role="alert"><b>Somebody has changed it meanwhile</b>
      <p>It has now: ${plain(Object.entries(variable.Items ?? {}).map(([k, v]) => `${k} = ${open ? v : "••••"}`).join(", "))}</p>
      <p class="tools"><button class="danger" onClick=${() => save(variable.ModifyIndex)}>Write mine over it</button>
      <button onClick=${() => take(variable)}>Take theirs</button></p></div>`}
    <div class="box">${base.ModifyIndex === 0 && html`<p class="tools"><label>Path <input aria-label="Path" value=${path}
      onInput=${(e) => setPath(e.target.value)} /></label></p>`}
    ${items.map(([name, value], i) => html`<p class="tools"><input aria-label=${`Name ${i + 1}`} value=${name}
      onInput=${(e) => set(i, 0, e.target.value)} /><input aria-label=${`Value ${i + 1}`} autocomplete="off"
      type=${open ? "text" : "password"} value=${value} onInput=${(e) => set(i, 1, e.target.value)} />
      <button onClick=${() => setItems(items.filter((_, n) => n !== i))}>Remove</button></p>`)}
    <p class="tools"><button onClick=${() => setItems([...items, ["", ""]])}>Add an item</button>
      <button onClick=${() => setOpen(!open)}>${open ? "Hide values" : "Show values"}</button>
      <button disabled=${newer && typed} onClick=${() => save(base.ModifyIndex)}>Save</button>
      ${base.ModifyIndex > 0 && html`<${Act} label="Delete" danger question=${`Delete the variable ${path}?`}
        run=${async () => { await write(where(base.ModifyIndex), undefined, "DELETE"); location.assign("/ui/variables"); }} />`}
    </p></div>`;
}

/** Where is room? One bar for cpu and one for memory of each node. */
export function Topology() {
  const live = useLive(["/v1/nodes?resources=true", "/v1/allocations?namespace=*&resources=true&task_states=false"]);
  const [filter, setFilter] = useFilter();
  return html`<${Title}>Topology<//><div class="tools"><${Search} value=${filter} onInput=${setFilter} /></div>
    <${Loaded} live=${live}>${([nodes, allocs]) => html`<${Table} rows=${loads(nodes, allocs)
      .filter((n) => `${n.name} ${n.pool} ${n.datacenter}`.toLowerCase().includes(filter.toLowerCase()))}
      heads=${["Node", "State", "CPU", "Memory", "Allocations", "*Pool", "*Datacenter"]} none="No node has joined yet."
      row=${(n) => html`<tr key=${n.id}><td class="name"><a href=${nodeHref(n.id)}>${plain(n.name)}</a></td>
      <td><${State} word=${n.status} /></td><td><${Bar} used=${n.cpu} of=${n.cpuTotal} unit="MHz" /></td>
      <td><${Bar} used=${n.memory} of=${n.memoryTotal} unit="MiB" /></td>
      <td>${n.jobs.map(([job, namespace, count]) => html`<a href=${jobHref(job, namespace)}>${plain(job)}</a> × ${count} `)}</td>
      <td class="wide">${plain(n.pool)}</td><td class="wide">${plain(n.datacenter)}</td></tr>`} />`}<//>
    <${Cli} line="drover node status -allocs" raw="/v1/nodes?resources=true" />`;
}

const Bar = ({ used, of, unit }) => {
  const part = of > 0 ? Math.min(1, used / of) : 0;
  return html`<svg class="fill" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
    <rect class="rest" width="100" height="10" rx="2" /><rect class=${part > 0.9 ? "full" : "used"} height="10" rx="2"
    width=${part * 100} /></svg><span class="num">${used} of ${of} ${unit}</span>`;
};
