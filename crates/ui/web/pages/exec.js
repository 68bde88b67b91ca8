// A terminal in a task. The terminal's own code is loaded by this page only.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { useLive } from "../lib/api.js";
import { encode } from "../lib/base64.js";
import { actionPath, session } from "../lib/session.js";
import { plain } from "../lib/format.js";
import { allocHref, jobHref } from "../lib/routes.js";
import { Cli, Dialog, Loaded, Title } from "../lib/parts.js";

/** What a person types as a command: parts at blanks, quotes keep them together. */
const parts = (line) => [...line.matchAll(/"([^"]*)"|'([^']*)'|(\S+)/g)].map((m) => m[1] ?? m[2] ?? m[3]);

/** A terminal at the command; `said` hears how it stands. Returns what ends it. */
async function connect({ box, job, alloc, task, namespace, command, action, said, pasted }) {
  const [{ Terminal }, { FitAddon }] = await Promise.all([import("../vendor/xterm.js"),
    import("../vendor/addon-fit.js")]);
  const term = new Terminal({ screenReaderMode: true, cursorBlink: false, scrollback: 5000,
    fontFamily: 'ui-monospace, "DejaVu Sans Mono", monospace', fontSize: 13 });
  // A program may neither name this window, nor write the clipboard, nor make links.
  [0, 1, 2, 8, 52].forEach((code) => term.parser.registerOscHandler(code, () => true));
  const fit = new FitAddon();
  term.loadAddon(fit);
  term.open(box);
  const leave = (e) => e.ctrlKey && e.shiftKey && e.key === "Escape";
  term.attachCustomKeyEventHandler((e) => {
    if (!leave(e)) return true;
    document.querySelector("h1")?.focus();
    return false;
  });
  const path = action ? actionPath(job) : `/v1/client/allocation/${alloc}/exec`;
  const { send, close } = session(path, { task, namespace, tty: "true",
    ...(action ? { action, allocID: alloc } : { command: JSON.stringify(command) }) }, {
    opened: () => {
      sized();
      term.focus();
      said({ over: false, text: "Connected. Ctrl+Shift+Esc leaves the terminal." });
    },
    out: (bytes) => term.write(bytes),
    over: (text) => said({ over: true, text }) });
  const type = (text) => send({ stdin: { data: encode(text) } });
  const sized = () => { fit.fit(); send({ tty_size: { height: term.rows, width: term.cols } }); };
  const paste = (e) => {
    const text = e.clipboardData?.getData("text") ?? "";
    if (!/[\r\n]/.test(text.trimEnd())) return;
    // Lines run as they arrive: somebody looks at them first.
    e.preventDefault();
    e.stopPropagation();
    pasted({ text, take: () => { type(text.replace(/\r?\n/g, "\r")); term.focus(); } });
  };
  box.addEventListener("paste", paste, true);
  addEventListener("resize", sized);
  term.onData(type);
  return () => {
    removeEventListener("resize", sized);
    box.removeEventListener("paste", paste, true);
    close();
    term.dispose();
  };
}

const running = (alloc) => Object.entries(alloc?.TaskStates ?? {}).filter(([, t]) => t.State === "running")
  .map(([name]) => name);

export function Exec({ id, namespace, group, task: wanted, alloc: short }) {
  const [path, ns] = [`/v1/job/${encodeURIComponent(id)}`, `?namespace=${encodeURIComponent(namespace)}`];
  const live = useLive([`${path}/allocations${ns}`, `${path}/actions${ns}`]);
  return html`<${Title}>Exec<//><p>Job <a href=${jobHref(id, namespace)}>${plain(id)}</a></p>
    <${Loaded} live=${live}>${([all, actions]) => html`<${Session} job=${id} namespace=${namespace} wanted=${wanted}
      actions=${actions ?? []} allocs=${all.filter((a) =>
      a.ClientStatus === "running" && (!group || a.TaskGroup === group) && a.ID.startsWith(short))} />`}<//>`;
}

function Session({ allocs, actions, job, wanted, namespace }) {
  const [chosen, choose] = useState("");
  const [task, setTask] = useState(wanted);
  const [command, setCommand] = useState("/bin/sh");
  const [action, setAction] = useState("");
  const [at, go] = useState(null);
  const [state, say] = useState({ over: true, text: "" });
  const [paste, setPaste] = useState(null);
  const box = useRef(null);
  const alloc = allocs.find((a) => a.ID === chosen) ?? allocs[0];
  const tasks = running(alloc);
  const named = tasks.includes(task) ? task : tasks[0] ?? "";
  useEffect(() => {
    if (!at) return undefined;
    const ended = connect({ ...at, box: box.current, said: say, pasted: setPaste });
    ended.catch((error) => say({ over: true, text: `The terminal cannot be loaded: ${error.message}` }));
    return () => { ended.then((end) => end(), () => {}); };
  }, [at]);
  // A session goes on when the list of allocations changes below it.
  if (!alloc && !at) return html`<div class="box soft">No allocation runs in which a command could be run.</div>`;
  const offered = actions.filter((one) => one.TaskName === named && one.TaskGroupName === alloc?.TaskGroup);
  const chosenAction = offered.some((one) => one.Name === action) ? action : "";
  const begin = () => go({ job, alloc: alloc.ID, task: named, namespace, command: parts(command), action: chosenAction });
  const where = alloc?.ID ?? at.alloc;
  const line = chosenAction
    ? `drover action -namespace ${namespace} -job ${job} -allocation ${where} -task ${named} ${chosenAction}`
    : `drover alloc exec -i -t -task ${named} ${where} ${command}`;
  return html`<link rel="stylesheet" href=${new URL("../vendor/xterm.css", import.meta.url).pathname} />
    <div class="tools"><select aria-label="Allocation" value=${alloc?.ID} onChange=${(e) => choose(e.target.value)}>
      ${allocs.map((a) => html`<option key=${a.ID} value=${a.ID}>${plain(`${a.Name} ${a.ID.slice(0, 8)}`)}</option>`)}
      </select><select aria-label="Task" value=${named} onChange=${(e) => setTask(e.target.value)}>${tasks.map((name) =>
        html`<option key=${name}>${plain(name)}</option>`)}</select>
      ${offered.length > 0 && html`<select aria-label="Action" value=${chosenAction}
        onChange=${(e) => setAction(e.target.value)}><option value="">a command</option>${offered.map((one) => html`
        <option key=${one.Name} value=${one.Name}>action ${plain(one.Name)}</option>`)}</select>`}
      <input aria-label="Command" disabled=${chosenAction !== ""} value=${command} onInput=${(e) => setCommand(e.target.value)} />
      <button disabled=${!state.over || !alloc || !named || (!chosenAction && !command.trim())} onClick=${begin}>${at ? "Run again" : "Run"}
      </button>${alloc && html`<a href=${allocHref(alloc.ID)}>Its allocation</a>`}</div>
    ${state.text && html`<p class=${state.over ? "warn" : "soft"} role="status">${plain(state.text)}</p>`}
    <div class="terminal" ref=${box}></div>
    ${paste && html`<${Dialog} close=${() => setPaste(null)}><p>Paste these lines? Each runs as it arrives.</p>
      <pre class="log">${plain(paste.text)}</pre><p class="tools"><button onClick=${() => { paste.take(); setPaste(null); }}>
      Paste</button><button onClick=${() => setPaste(null)}>Leave it</button></p><//>`}
    <${Cli} line=${line} raw=${`/v1/allocation/${where}`} />`;
}
