// What the whole cluster shares: servers, services, and how full the nodes are.
import { html } from "../lib/html.js";
import { useLive } from "../lib/api.js";
import { plain } from "../lib/format.js";
import { allocHref, jobHref, monitorHref, nodeHref, remoteHref } from "../lib/routes.js";
import { byDatacenter, loads, providers, room } from "../lib/loads.js";
import { Cli, Loaded, Search, State, Table, Title, useFilter, useParam } from "../lib/parts.js";

export function Servers() {
  const live = useLive(["/v1/agent/members", "/v1/status/leader"]);
  return html`<${Title}>Servers<//><${Loaded} live=${live}>${([given, leader]) => html`<${Table}
    rows=${given.Members ?? []} heads=${["Server", "State", "Role", "Address", "*Release", "*Region"]}
    none="No server is known." row=${(m) => {
      const rpc = `${m.Addr}:${m.Tags?.port ?? m.Port}`;
      return html`<tr key=${m.Name}><td class="name"><a href=${monitorHref("server", m.Name)}
      title="The log of its agent">${plain(m.Name)}</a></td><td><${State} word=${m.Status} /></td>
      <td>${rpc === leader ? html`<b>leads</b>` : html`<span class="soft">follows</span>`}</td>
      <td class="num">${plain(rpc)}</td><td class="wide">${plain(m.Tags?.build)}</td>
      <td class="wide">${plain(m.Tags?.region)}</td></tr>`; }} />`}<//>
    <${Cli} line="drover server members" raw="/v1/agent/members" />`;
}

export function Services() {
  const [filter, setFilter] = useFilter();
  const live = useLive(["/v1/services?namespace=*"]);
  const words = (s) => `${s.ServiceName} ${(s.Tags ?? []).join(" ")}`.toLowerCase();
  return html`<${Title}>Services<//><div class="tools"><${Search} value=${filter} onInput=${setFilter} /></div>
    <${Loaded} live=${live}>${([given]) => html`<${Table} heads=${["Service", "Tags", "Namespace"]}
      rows=${given.flatMap((n) => (n.Services ?? []).map((s) => ({ ...s, Namespace: n.Namespace })))
        .filter((s) => words(s).includes(filter.toLowerCase()))} none="No service is registered." row=${(s) => html`
      <tr key=${`${s.Namespace}/${s.ServiceName}`}><td class="name">${plain(s.ServiceName)}</td>
      <td>${plain((s.Tags ?? []).join(", "))}</td><td>${plain(s.Namespace)}</td></tr>`} />`}<//>
    <${Cli} line="drover service list" raw="/v1/services?namespace=*" />`;
}

/** The instances of the services of a job. */
export function ServicesOf({ id, namespace }) {
  const ns = encodeURIComponent(namespace);
  const live = useLive([`/v1/job/${encodeURIComponent(id)}/services?namespace=${ns}`]);
  return html`<${Loaded} live=${live}>${([given]) => html`<${Table} rows=${given} none="The job has no service."
    heads=${["Service", "Address", "Allocation", "Tags"]} row=${(s) => html`<tr key=${s.ID}>
    <td class="name">${plain(s.ServiceName)}</td><td class="num">${plain(s.Address)}${s.Port ? `:${s.Port}` : ""}</td>
    <td class="num"><a href=${allocHref(s.AllocID)}>${s.AllocID.slice(0, 8)}</a></td>
    <td>${plain((s.Tags ?? []).join(", "))}</td></tr>`} />`}<//>`;
}

/** Where is room? One bar for cpu and one for memory of each node; a size that is typed is looked for in all. */
export function Topology() {
  const live = useLive(["/v1/nodes?resources=true", "/v1/allocations?namespace=*&resources=true&task_states=false",
    "/v1/remote/tasks?namespace=*"]);
  const [filter, setFilter] = useFilter();
  const [cpu, setCpu] = useParam("cpu");
  const [memory, setMemory] = useParam("memory");
  const [port, setPort] = useParam("port");
  const wanted = filter.toLowerCase();
  const size = (label, value, set) => html`<label>${label} <input type="number" min="0" aria-label=${label} value=${value}
    onInput=${(e) => set(e.target.value)} /></label>`;
  return html`<${Title}>Topology<//><div class="tools"><${Search} value=${filter} onInput=${setFilter} />
    ${size("Fits MHz", cpu, setCpu)}${size("and MiB", memory, setMemory)}
    ${size("and port", port, setPort)}</div>
    <${Loaded} live=${live}>${([nodes, allocs, tasks]) => {
      const all = loads(nodes, allocs);
      const looks = [cpu, memory, port].some((n) => Number(n) > 0);
      const fits = (n) => room(n, Number(cpu), Number(memory), Number(port));
      const rows = all.filter((n) => `${n.name} ${n.pool} ${n.datacenter} ${n.jobs.map(([job]) => job).join(" ")}`
        .toLowerCase().includes(wanted) && (!looks || fits(n) > 0));
      const total = rows.reduce((sum, n) => sum + (looks ? fits(n) : 0), 0);
      return html`<div class="counts">${byDatacenter(all).map((d) => html`<div class="count" key=${d.name}>
          <b>${plain(d.name)}</b><${Bar} used=${d.cpu} of=${d.cpuTotal} unit="MHz" />
          <${Bar} used=${d.memory} of=${d.memoryTotal} unit="MiB" />
          <div class="soft">${d.nodes} ${d.nodes === 1 ? "node takes" : "nodes take"} work</div></div>`)}</div>
        ${looks && html`<p role="status">${total > 0 ? `It fits ${total} times, on ${rows.length} of ${all.length} nodes.` :
          "It fits on no node."}</p>`}
        <${Table} rows=${rows} none=${all.length ? "No node matches." : "No node has joined yet."}
        heads=${["Node", "State", "CPU", "Memory", "Allocations", "*Pool", "*Datacenter"]}
        row=${(n) => html`<tr key=${n.id}><td class="name"><a href=${nodeHref(n.id)}>${plain(n.name)}</a></td>
        <td><${State} word=${n.status} /></td><td><${Bar} used=${n.cpu} of=${n.cpuTotal} unit="MHz" /></td>
        <td><${Bar} used=${n.memory} of=${n.memoryTotal} unit="MiB" /></td>
        <td>${n.jobs.map(([job, ns, count]) => html`<a class=${wanted && job.toLowerCase().includes(wanted) ? "marked" : ""}
          href=${jobHref(job, ns)}>${plain(job)}</a> × ${count} `)}</td>
        <td class="wide">${plain(n.pool)}</td><td class="wide">${plain(n.datacenter)}</td></tr>`} />
        <${Runtimes} all=${providers(nodes, tasks)} />`;
    }}<//><${Cli} line="drover node status -allocs" raw="/v1/nodes?resources=true" />`;
}

/** How much of something is taken, as a bar and in numbers. */
export const Bar = ({ used, of, unit }) => {
  const part = of > 0 ? Math.min(1, used / of) : 0;
  return html`<svg class="fill" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
    <rect class="rest" width="100" height="10" rx="2" /><rect class=${part > 0.9 ? "full" : "used"} height="10" rx="2"
    width=${part * 100} /></svg><span class="num">${used} of ${of} ${unit}</span>`;
};

/** Remote runtimes as lanes beside the nodes: what is there, and who reaches it. */
const Runtimes = ({ all }) => html`${all.length > 0 && html`<h2>Remote runtimes</h2>`}${all.map((p) => html`<div class="box"
  key=${`${p.driver} ${p.name}`}><b>${plain(p.driver)}</b> ${plain(p.name)}:${" "}
  <a href=${remoteHref(p.driver)}>${p.tasks} ${p.tasks === 1 ? "task" : "tasks"}</a>,${" "}
  ${p.unmanaged > 0 && html`<span class="warn">${p.unmanaged} unmanaged, </span>`}reached by${" "}
  ${p.nodes.length ? plain(p.nodes.join(", ")) : html`<b class="bad">no node</b>`}
  ${p.cpu > 0 && `, ${p.cpu} MHz and ${p.memory} MiB in all`}</div>`)}`;
