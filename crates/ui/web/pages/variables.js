// Variables: their paths, and one of them with its items.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { Refused, useLive, write } from "../lib/api.js";
import { plain } from "../lib/format.js";
import { variableHref } from "../lib/routes.js";
import { Act, Age, Cli, Loaded, Problem, Search, Table, Title, useFilter } from "../lib/parts.js";

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
      <td class="name"><a href=${variableHref(v.Path, v.Namespace)}>${plain(v.Path)}</a></td>
      <td>${plain(v.Namespace)}</td><td class="num"><${Age} at=${v.ModifyTime} past /></td>
      <td class="wide">${v.Lock ? "yes" : ""}</td></tr>`} />`}<//>
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
  // Also when the answer to a write comes after the news of it.
  useEffect(() => { if (newer && !typed) take(variable); }, [variable.ModifyIndex, typed]);
  const setItems = (next) => { change(next); setTyped(true); };
  const set = (i, name, value) => setItems(items.map((item, n) => (n === i ? [name, value] : item)));
  const theirs = Object.entries(variable.Items ?? {}).map(([k, v]) => `${k} = ${open ? v : "••••"}`).join(", ");
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
      const there = error.status === 409 && base.ModifyIndex === 0;
      say(there ? new Refused(409, `a variable at ${path} exists already; open it to change it`) : error);
    }
  };
  const remove = async () => {
    await write(where(base.ModifyIndex), undefined, "DELETE");
    location.assign("/ui/variables");
  };
  return html`${said && html`<${Problem} error=${said} />`}
    ${newer && typed && html`<div class="box bad" role="alert"><b>Somebody has changed it meanwhile</b>
      <p>It has now: ${plain(theirs)}</p>
      <p class="tools"><button class="danger" onClick=${() => save(variable.ModifyIndex)}>Write mine over it</button>
      <button onClick=${() => take(variable)}>Take theirs</button></p></div>`}
    <div class="box">${base.ModifyIndex === 0 && html`<p class="tools"><label>Path
      <input aria-label="Path" value=${path}
      onInput=${(e) => setPath(e.target.value)} /></label></p>`}
    ${items.map(([name, value], i) => html`<p class="tools"><input aria-label=${`Name ${i + 1}`} value=${name}
      onInput=${(e) => set(i, e.target.value, value)} /><input aria-label=${`Value ${i + 1}`} autocomplete="off"
      type=${open ? "text" : "password"} value=${value} onInput=${(e) => set(i, name, e.target.value)} />
      <button onClick=${() => setItems(items.filter((_, n) => n !== i))}>Remove</button></p>`)}
    <p class="tools"><button onClick=${() => setItems([...items, ["", ""]])}>Add an item</button>
      <button onClick=${() => setOpen(!open)}>${open ? "Hide values" : "Show values"}</button>
      <button disabled=${newer && typed} onClick=${() => save(base.ModifyIndex)}>Save</button>
      ${base.ModifyIndex > 0 && html`<${Act} label="Delete" danger question=${`Delete the variable ${path}?`}
        run=${remove} />`}
    </p></div>`;
}
