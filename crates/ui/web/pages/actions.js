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
  const change = (key, more) => set((old) => old.map((run) => (run.key === key ? { ...run, ...more(run) } : run)));
  const run = (one, allocs) => allocs.forEach((alloc) => {
    const key = `${one.Name} ${alloc.ID} ${Date.now()}`;
    const decoder = new TextDecoder();
    set((old) => [{ key, action: one.Name, alloc, text: "", ended: "" }, ...old]);
    open.current.push(session(actionPath(job.ID), { action: one.Name, allocID: alloc.ID, task: one.TaskName,
      namespace: job.Namespace, tty: "false" }, {
      out: (bytes) => change(key, ({ text }) => ({ text: (text + decoder.decode(bytes, { stream: true })).slice(-KEPT) })),
      over: (ended, code) => change(key, () => ({ ended, code })) }));
  });
  return html`<${Loaded} live=${live}>${([actions, all]) => {
    const of = (one) => all.filter((a) => a.ClientStatus === "running" && a.TaskGroup === one.TaskGroupName);
    return html`<${Table} rows=${actions ?? []} none="The job names no actions." heads=${["Action", "Task", "Command", "Run"]}
      row=${(one) => html`<tr key=${`${one.TaskGroupName} ${one.TaskName} ${one.Name}`}><td class="name">${plain(one.Name)}</td>
      <td>${plain(`${one.TaskGroupName}/${one.TaskName}`)}</td><td><code>${plain([one.Command, ...(one.Args ?? [])].join(" "))}</code></td>
      <td><div class="tools">${of(one).length === 0 ? html`<span class="soft">no allocation runs</span>` : html`
      <${Act} label="Run on one" question=${`Run ${one.Name} in ${of(one)[0].Name}?`} run=${() => run(one, of(one).slice(0, 1))} />
      ${of(one).length > 1 && html`<${Act} label=${`Run on all ${of(one).length}`} danger
        question=${`Run ${one.Name} in all ${of(one).length} running allocations of ${one.TaskGroupName}?`}
        run=${() => run(one, of(one))} />`}`}</div></td></tr>`} />`;
  }}<//>${runs.length > 0 && html`<h2>What they said</h2>`}${runs.map((one) => html`<div class="box" key=${one.key}>
    <p><b>${plain(one.action)}</b> in <a href=${allocHref(one.alloc.ID)}>${plain(one.alloc.Name)}</a>:${" "}
    ${one.ended ? html`<span class=${one.code === 0 ? "good" : "bad"}>${plain(one.ended)}</span>` : html`<${State} word="running" />`}</p>
    <pre class="log">${plain(bare(one.text))}</pre></div>`)}`;
}
