// Namespaces: what teams share a cluster by, and what the jobs of each may use together.
import { useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { useLive, write } from "../lib/api.js";
import { plain, words } from "../lib/format.js";
import { accessHref } from "../lib/routes.js";
import { Act, Cli, Loaded, Problem, Table, Title } from "../lib/parts.js";
import { Tabs } from "./access.js";

const LIMITS = [["Allocations", "Allocations"], ["CPU", "CPU in MHz"], ["MemoryMB", "Memory in MiB"],
  ["RemoteTasks", "Remote tasks"]];
const limited = (n) => LIMITS.filter(([key]) => n.Limits?.[key] != null).map(([key, label]) =>
  `${label}: ${n.Usage?.[key] ?? 0} of ${n.Limits[key]}`).join(", ");
const drivers = (n) => [(n.Capabilities?.EnabledTaskDrivers ?? []).join(", "),
  (n.Capabilities?.DisabledTaskDrivers ?? []).map((name) => `not ${name}`).join(", ")].filter(Boolean).join(", ");

export function Namespaces() {
  const live = useLive(["/v1/namespaces"]);
  return html`<${Title}>Namespaces<//><${Tabs} part="namespaces" />
    <div class="tools"><a href=${accessHref("namespaces", "new")}>New</a></div>
    <${Loaded} live=${live}>${([all]) => html`<${Table} heads=${["Name", "Description", "Used of its limits", "*Drivers"]}
      none="There is no namespace that you may see." rows=${all} row=${(n) => html`<tr key=${n.Name}><td class="name">
      <a href=${accessHref("namespaces", n.Name)}>${plain(n.Name)}</a></td><td>${plain(n.Description)}</td>
      <td>${limited(n) || html`<span class="soft">none</span>`}</td><td class="wide">${plain(drivers(n)) ||
        html`<span class="soft">all</span>`}</td></tr>`} />`}<//>
    <${Cli} line="drover namespace list" raw="/v1/namespaces" />`;
}

export function NamespaceOf({ id }) {
  if (id === "new") return html`<${Title}>New namespace<//><${Tabs} part="namespaces" /><${Edit} of=${null} />`;
  const path = `/v1/namespace/${encodeURIComponent(id)}`;
  const live = useLive([path]);
  return html`<${Title}>${plain(id)}<//><${Tabs} part="namespaces" /><${Loaded} live=${live}>${([of]) => html`<${Edit}
    of=${of} />`}<//><${Cli} line=${`drover namespace inspect ${id}`} raw=${path} />`;
}

function Edit({ of }) {
  const [form, set] = useState({ name: of?.Name ?? "", description: of?.Description ?? "",
    enabled: (of?.Capabilities?.EnabledTaskDrivers ?? []).join(", "),
    disabled: (of?.Capabilities?.DisabledTaskDrivers ?? []).join(", "),
    ...Object.fromEntries(LIMITS.map(([key]) => [key, String(of?.Limits?.[key] ?? "")])) });
  const [said, say] = useState(null);
  const field = (label, key, type = "text") => html`<p class="tools"><label>${label} <input aria-label=${label} type=${type}
    min="0" value=${form[key]} onInput=${(e) => set({ ...form, [key]: e.target.value })} /></label></p>`;
  const save = async () => {
    say(null);
    const given = LIMITS.filter(([key]) => form[key] !== "").map(([key]) => [key, Number(form[key])]);
    const uses = form.enabled || form.disabled || of?.Capabilities;
    // What the form does not show stays as it is.
    const body = { ...of, Usage: undefined, Name: form.name, Description: form.description,
      Limits: given.length ? { ...of?.Limits, ...Object.fromEntries(LIMITS.map(([key]) => [key, null])),
        ...Object.fromEntries(given) } : null,
      Capabilities: uses ? { ...of?.Capabilities, EnabledTaskDrivers: words(form.enabled),
        DisabledTaskDrivers: words(form.disabled) } : null };
    try {
      await write("/v1/namespace", body);
      location.assign(accessHref("namespaces"));
    } catch (error) {
      say(error);
    }
  };
  return html`${said && html`<${Problem} error=${said} />`}<div class="box">${!of && field("Name", "name")}
    ${field("Description", "description")}${field("Only these drivers", "enabled")}${field("Not these drivers", "disabled")}
    <h2>What its jobs may use together</h2>${LIMITS.map(([key, label]) => field(label, key, "number"))}
    <p class="soft">An empty field is no limit.</p><p class="tools"><button onClick=${save}>Save</button>
    ${of && of.Name !== "default" && html`<${Act} label="Delete" danger question=${`Delete the namespace ${of.Name}?`}
      run=${async () => {
        await write(`/v1/namespace/${encodeURIComponent(of.Name)}`, undefined, "DELETE");
        location.assign(accessHref("namespaces"));
      }} />`}</p></div>`;
}
