// Actions of a job: commands that it names, run in one allocation or in all, with what they said.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { useLive } from "../lib/api.js";
import { bare } from "../lib/ansi.js";
import { plain } from "../lib/format.js";
import { allocHref } from "../lib/routes.js";
import { Act, Loaded, State, Table } from "../lib/parts.js";
import { actionPath, session } from "../lib/session.js";

/** Characters of a run that are kept. */
const KEPT = 50_000;

export function Actions({ job, path, ns }) {
  const live = useLive([`${path}/actions${ns}`, `${path}/allocations${ns}`]);
  const [runs, set] = useState([]);
  const open = useRef([]);
  useEffect(() => () => open.current.forEach((one) => one.close()), []);
  const change = (key, more) => set((old) => old.map((one) => (one.key === key ? { ...one, ...more(one) } : one)));
  const run = (action, allocs) => allocs.forEach((alloc) => {
    const key = open.current.length;
    const decoder = new TextDecoder();
    set((old) => [{ key, action: action.Name, alloc, text: "", ended: "" }, ...old]);
    const out = (bytes) => {
      const said = decoder.decode(bytes, { stream: true });
      change(key, ({ text }) => ({ text: (text + said).slice(-KEPT) }));
    };
    const over = (ended, code) => change(key, () => ({ ended, code }));
    open.current.push(session(actionPath(job.ID), { action: action.Name, allocID: alloc.ID, task: action.TaskName,
      namespace: job.Namespace, tty: "false" }, { out, over }));
  });
  return html`<${Loaded} live=${live}>${([actions, all]) => {
    const of = (action) => all.filter((a) => a.ClientStatus === "running" && a.TaskGroup === action.TaskGroupName);
    return html`<${Table} rows=${actions ?? []} none="The job names no actions."
      heads=${["Action", "Task", "Command", "Run"]} row=${(action) => html`
      <${Row} key=${`${action.TaskGroupName} ${action.TaskName} ${action.Name}`} action=${action}
      allocs=${of(action)} run=${run} />`} />`;
  }}<//>${runs.length > 0 && html`<h2>What they said</h2>`}${runs.map((one) => html`<${Said} key=${one.key} ...${one} />`)}`;
}

function Row({ action, allocs, run }) {
  const command = [action.Command, ...(action.Args ?? [])].join(" ");
  return html`<tr><td class="name">${plain(action.Name)}</td>
    <td>${plain(`${action.TaskGroupName}/${action.TaskName}`)}</td><td><code>${plain(command)}</code></td>
    <td><div class="tools">${!allocs.length && html`<span class="soft">no allocation runs</span>`}
    ${allocs.length > 0 && html`<${Act} label="Run on one" question=${`Run ${action.Name} in ${allocs[0].Name}?`}
      run=${() => run(action, allocs.slice(0, 1))} />`}
    ${allocs.length > 1 && html`<${Act} label=${`Run on all ${allocs.length}`} danger
      question=${`Run ${action.Name} in all ${allocs.length} running allocations of ${action.TaskGroupName}?`}
      run=${() => run(action, allocs)} />`}</div></td></tr>`;
}

const Said = ({ action, alloc, text, ended, code }) => html`<div class="box"><p><b>${plain(action)}</b> in${" "}
  <a href=${allocHref(alloc.ID)}>${plain(alloc.Name)}</a>:${" "}${ended ? html`<span
  class=${code === 0 ? "good" : "bad"}>${plain(ended)}</span>` : html`<${State} word="running" />`}</p>
  <pre class="log">${plain(bare(text))}</pre></div>`;
