// Dynamic host volumes: which there are, on which nodes, and who uses them.
import { html } from "../lib/html.js";
import { useLive, write } from "../lib/api.js";
import { bytes, plain } from "../lib/format.js";
import { nodeHref, volumeHref } from "../lib/routes.js";
import { Act, Age, Cli, Loaded, Search, State, Table, Title, useFilter } from "../lib/parts.js";
import { Allocs } from "./jobs.js";

const size = (n) => (n > 0 ? bytes(n) : html`<span class="soft">not told</span>`);
const maker = (v) => (v.PluginID ? plain(v.PluginID) : html`<span class="soft">registered</span>`);

export function Volumes() {
  const live = useLive(["/v1/volumes?type=host&namespace=*", "/v1/nodes"]);
  const [filter, setFilter] = useFilter();
  return html`<${Title}>Storage<//><div class="tools"><${Search} value=${filter} onInput=${setFilter} /></div>
    <${Loaded} live=${live}>${([all, nodes]) => {
      const named = new Map(nodes.map((node) => [node.ID, node.Name]));
      const name = (v) => named.get(v.NodeID) ?? v.NodeID.slice(0, 8);
      const sought = filter.toLowerCase();
      const rows = all.filter((v) => `${v.Name} ${v.ID} ${v.Namespace} ${v.State} ${v.PluginID} ${name(v)}`
        .toLowerCase().includes(sought));
      const heads = ["Volume", "State", "Node", "Capacity", "*Made by", "*Namespace", "*Age"];
      return html`<${Table} heads=${heads} rows=${rows}
        none=${all.length ? "No volume matches the filter." : "There is no dynamic host volume."} row=${(v) => html`
        <tr key=${v.ID}><td class="name"><a href=${volumeHref(v.ID, v.Namespace)}>${plain(v.Name)}</a>
        <span class="soft"> ${v.ID.slice(0, 8)}</span></td><td><${State} word=${v.State} /></td>
        <td><a href=${nodeHref(v.NodeID)}>${plain(name(v))}</a></td><td class="num">${size(v.CapacityBytes)}</td>
        <td class="wide">${maker(v)}</td><td class="wide">${plain(v.Namespace)}</td>
        <td class="wide num"><${Age} at=${v.CreateTime} /></td></tr>`} />`;
    }}<//><${Cli} line="drover volume status" raw="/v1/volumes?type=host&namespace=*" />`;
}

/** What a group must ask for to get it. */
const modes = (v) => (v.RequestedCapabilities ?? []).map((c) => `${c.AccessMode} as ${c.AttachmentMode}`).join(", ");

export function Volume({ id, namespace }) {
  const path = `/v1/volume/host/${encodeURIComponent(id)}`;
  const ns = `?namespace=${encodeURIComponent(namespace)}`;
  const live = useLive([path + ns]);
  return html`<${Title}>${plain(live.data?.[0]?.Name ?? id)}<//><${Loaded} live=${live}>${([v]) => html`
    <div class="box"><dl><dt>State</dt><dd><${State} word=${v.State} /></dd><dt>Id</dt><dd>${v.ID}</dd>
    <dt>Node</dt><dd><a href=${nodeHref(v.NodeID)}>${v.NodeID.slice(0, 8)}</a></dd>
    <dt>Pool</dt><dd>${plain(v.NodePool)}</dd>
    <dt>Path</dt><dd>${plain(v.HostPath) || html`<span class="soft">not there yet</span>`}</dd>
    <dt>Capacity</dt><dd>${size(v.CapacityBytes)}</dd><dt>Made by</dt><dd>${maker(v)}</dd>
    <dt>May be used</dt><dd>${plain(modes(v)) || html`<span class="soft">in every way</span>`}</dd>
    ${Object.entries(v.Parameters ?? {}).map(([key, value]) =>
      html`<dt>${plain(key)}</dt><dd>${plain(value)}</dd>`)}</dl></div>
    <div class="tools"><${Act} label="Delete" danger question=${v.PluginID ? `Delete ${v.Name} and the data in it?` :
      `Forget ${v.Name}? Its directory stays.`} run=${async () => {
      await write(path + ns, undefined, "DELETE");
      location.assign("/ui/storage");
    }} /></div><h2>Allocations that use it</h2><${Allocs} allocs=${v.Allocations ?? []} />`}<//>
    <${Cli} line=${`drover volume status -namespace ${namespace} ${id}`} raw=${path + ns} />`;
}
