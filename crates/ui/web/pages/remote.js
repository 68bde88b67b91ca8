// Remote tasks: one unbroken life each, under changing managers.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { read, useEvery, useLive, write } from "../lib/api.js";
import { plain, shortly, span } from "../lib/format.js";
import { doubles, orphans } from "../lib/doubles.js";
import { lanes, ledSince } from "../lib/lanes.js";
import { allocHref, nodeHref, slotHref } from "../lib/routes.js";
import { Act, Age, Cli, Loaded, Search, State, Table, Title, useFilter } from "../lib/parts.js";
import { FATES } from "./clients.js";
import { Doubles, Orphans, SWEPT_MS } from "./orphans.js";

/** Counts of tasks, which the words of their rows are found by. */
const FILTERS = ["unmanaged", "unknown", "stopping"];

export function Remote() {
  const live = useLive(["/v1/remote/tasks?namespace=*"]);
  const swept = useEvery("/v1/remote/unbound", SWEPT_MS);
  const [filter, setFilter] = useFilter();
  return html`<${Title}>Remote tasks<//><${Loaded} live=${live}>${([tasks]) => {
    const sweeps = swept.data?.[0] ?? [];
    const lone = orphans(sweeps, tasks);
    const counts = [["unmanaged", tasks.filter((t) => t.Unmanaged).length],
      ["unknown", tasks.filter((t) => t.Observed?.State === "Unknown").length],
      ["stopping", tasks.filter((t) => t.Desired === "stop").length],
      ["orphaned instances", lone.length], ["duplicates", doubles(lone).length],
      ["providers not reached", sweeps.filter((s) => s.Error).length]];
    const words = (t) => `${t.SlotName} ${t.ProviderId} ${t.Driver} ${t.Provider} ${t.ManagerName}
      ${t.Guarantee?.Level} ${t.Observed?.State}
      ${t.Unmanaged ? "unmanaged" : ""} ${t.Desired === "stop" ? "stopping" : ""}`.toLowerCase();
    return html`<div class="counts">${counts.map(([word, n]) => (n && FILTERS.includes(word) ?
        html`<button class="count warn" onClick=${() => setFilter(word)}><b>${n}</b>${word}</button>` :
        html`<div class=${`count ${n ? "warn" : ""}`}><b>${n}</b>${word}</div>`))}</div>
      <div class="tools"><${Search} value=${filter} onInput=${setFilter} /></div>
      <${Table} rows=${tasks.filter((t) => words(t).includes(filter.toLowerCase()))}
      heads=${["Slot", "Observed", "Manager", "Hand-overs", "*Guarantee", "*Provider's name", "*Driver"]}
      none="There is no remote task here."
      row=${(t) => html`<tr key=${t.SlotName}><td class="name"><a href=${slotHref(t.SlotName)}>${plain(t.SlotName)}</a></td>
      <td><${State} word=${t.Observed?.State} /></td><td>${t.Unmanaged ? html`<${State} word="unmanaged" />` :
        plain(t.ManagerName)}</td><td class="num">${t.Epoch - 1}</td>
      <td class="wide" title=${plain(t.Guarantee?.Reason)}>${plain(t.Guarantee?.Level)}</td>
      <td class="wide">${plain(t.ProviderId)}</td>
      <td class="wide">${plain(t.Driver)}</td></tr>`} />
      ${swept.data && html`<p class="soft">${sweeps.length ? html`The runtimes were last asked for orphaned instances${" "}
        <${Age} at=${Math.min(...sweeps.map((s) => s.At))} past />.` : `No runtime has been asked for orphaned instances yet:
        that none is seen does not mean that there is none.`}</p>`}
      ${swept.error && html`<p class="warn">${plain(`Orphaned instances are not known: ${swept.error.message}`)}</p>`}
      ${lone.length > 0 && html`<h2>Orphaned instances</h2><p class="soft">A runtime has them, and no record knows
        them.</p><${Orphans} all=${lone} />`}
      ${sweeps.filter((s) => s.Error).map((s) => html`<div class="box bad">${plain(`${s.Driver} ${s.Provider}: ${s.Error}`)}
        </div>`)}`;
  }}<//><${Cli} line="drover remote status" raw="/v1/remote/tasks?namespace=*" />`;
}

export function Slot({ id }) {
  const path = `/v1/remote/task/${id.split("/").map(encodeURIComponent).join("/")}`;
  const live = useLive([path]);
  return html`<${Loaded} live=${live}>${([t]) => html`<${Title}>${plain(t.SlotName)}<//><${Doubles} task=${t} />
    <${Bars} task=${t} /><div class="box"><dl>
    <dt>Observed</dt><dd><${State} word=${t.Observed?.State} /></dd>
    <dt>Manager</dt><dd>${t.Unmanaged ? html`<${State} word="unmanaged" />` : html`
      <a href=${nodeHref(t.Manager.NodeID)}>${plain(t.ManagerName)}</a>`}</dd>
    <dt>Epoch</dt><dd>${t.Epoch} <span class="soft">grows whenever management moves</span></dd>
    <dt>Driver</dt><dd>${plain(t.Driver)}, at ${plain(t.Provider)}</dd>
    <dt>Guarantee</dt><dd><b>${plain(t.Guarantee?.Level)}</b> ${plain(t.Guarantee?.Reason)}
      ${(t.Guarantee?.Limits ?? []).map((limit) => html`<div class="soft">${plain(limit)}</div>`)}</dd>
    ${t.StopReason && html`<dt>Stops because</dt><dd>${plain(t.StopReason)}</dd>`}
    ${t.Waiting && html`<dt>Waits for</dt><dd>${plain(t.Waiting)}</dd>`}
    <dt>Provider's name</dt><dd>${plain(t.ProviderId) || "–"}</dd><dt>Incarnation</dt><dd>${t.IncarnationID}</dd>
    <dt>Allocation</dt><dd><a href=${allocHref(t.AllocID)}>${String(t.AllocID).slice(0, 8)}</a></dd></dl></div>
    <div class="tools"><${Act} label="Restart" danger question=${`Replace the instance of ${t.SlotName}?`}
      run=${() => write(path.replace("/task/", "/restart/"), {})} />
      <${Act} label="It is gone" danger typed=${t.SlotName} question=${`Say that the instance of ${t.SlotName} no longer
        exists? Its slot gets another one. If it does exist after all, the work is done twice.`}
        run=${() => write(path.replace("/task/", "/gone/"), {})} />
      <${Act} label="Forget the record" danger typed=${t.SlotName} question=${`Forget the record of ${t.SlotName}? The
        instance, if there is one, runs on as an orphan, and its slot may get another one.`} run=${async () => {
        await write(path, undefined, "DELETE");
        location.assign("/ui/remote");
      }} /></div>
    <${IfManagerGoes} task=${t} />
    <details class="box"><summary>What is this?</summary><p>The work runs in a runtime that the node does not own. The
      bar above is the instance; below it is who managed it when. When a manager is lost, the instance goes on, and the
      next node that reaches its runtime adopts it under the next epoch. Nothing is started again meanwhile.</p>
      <p>"It is gone" is for whoever knows that the runtime has lost the instance; "Forget the record" is for a runtime
      that is no longer there at all. The servers refuse the first while the instance is seen alive.</p></details>
    <h2>What happened</h2><${Table} heads=${["When", "Epoch", "What"]} none="Nothing yet."
      rows=${[...(t.History ?? [])].reverse()} row=${(e) => html`<tr><td class="num"><${Age} at=${e.Time} past /></td>
      <td class="num">${e.Epoch}</td><td>${plain(e.Message)}</td></tr>`} />
    <${Cli} line=${`drover remote status ${t.SlotName}`} raw=${path} />`}<//>`;
}

/** Names of nodes by id, as far as they can be read: each is asked for once. */
function useNames(ids) {
  const [names, set] = useState({});
  const wanted = [...new Set(ids)].sort().join();
  useEffect(() => {
    const stop = new AbortController();
    wanted.split(",").filter((id) => id && !names[id]).forEach((id) =>
      // One that is gone, or may not be seen, keeps its id.
      read(`/v1/node/${encodeURIComponent(id)}`, stop.signal).then((node) =>
        set((old) => ({ ...old, [id]: node.Name })), () => {}));
    return () => stop.abort();
  }, [wanted]);
  return (id) => names[id] ?? `node ${id.slice(0, 8)}`;
}

/** The instance as one bar, the managers below it. The table of events says the same in words. */
function Bars({ task }) {
  const all = lanes(task, Date.now());
  const trends = useEvery("/v1/metrics/trends", 10_000);
  const led = ledSince(trends.data?.[0] ?? []);
  const name = useNames(all.lanes.map((lane) => lane.node).filter(Boolean));
  const x = (ms) => ((ms - all.from) / Math.max(1, all.to - all.from)) * 1000;
  const high = 52 + all.lanes.length * 28;
  return html`<div class="box"><div class="scrolls" tabindex="0" role="region" aria-label="Lanes">
    <svg class="lanes" viewBox=${`0 0 1000 ${high}`} role="img" aria-label="The instance and its managers over time">
    <rect class="instance" x="0" y="4" width="1000" height="26" rx="4" />
    <text class="onbar" x="8" y="22">incarnation ${String(task.IncarnationID).slice(0, 8)} ${span(all.to - all.from)}</text>
    ${led > all.from && html`<path class="restart" d=${`M${x(led)} 0V${high}`}><title>the server
      that leads began</title></path>`}
    ${all.gaps.map((gap) => html`<rect class="gap" x=${x(gap.from)} y="36" height=${high - 44}
      width=${Math.max(3, x(gap.to) - x(gap.from))} />`)}
    ${all.lanes.map((lane, i) => {
      const [left, right, y] = [x(lane.from), x(lane.to), 44 + i * 28];
      const [inside, before] = [right - left > 180, left > 700];
      const by = lane.node ? `${plain(name(lane.node))}, ` : "";
      return html`<rect class="lane" x=${left} y=${y} height="20" rx="3" width=${Math.max(3, right - left)} />
        <text class=${inside ? "onbar" : "beside"} x=${inside ? left + 8 : before ? left - 8 : right + 8} y=${y + 15}
          text-anchor=${before && !inside ? "end" : "start"}>${`epoch ${lane.epoch}, ${by}${span(lane.to - lane.from)}`}
          <title>${plain(lane.message)}</title></text>`;
    })}</svg></div>
    ${led > all.from && html`<p class="soft">┊ the server that leads began ${span(Date.now() - led)} ago; the instance
      went on</p>`}
    ${all.gaps.map((gap, i) => html`<p class="warn">▲ unmanaged for ${shortly(gap.to - gap.from)}${all.now &&
      i === all.gaps.length - 1 ? " until now; the instance goes on" : ", then adopted; the instance went on"}</p>`)}</div>`;
}

/** Who would manage the task if its manager were drained, or died now. */
function IfManagerGoes({ task }) {
  const [said, say] = useState(null);
  if (!task.Manager) return null;
  const look = async (event, words) => {
    try {
      const answer = await read(`/v1/node/${task.Manager.NodeID}/preview?event=${event}`);
      const mine = (answer.Allocs ?? []).find((a) => a.ID === task.Manager.AllocID || a.ID === task.AllocID);
      say({ fate: mine?.Fate, words: mine ? `If ${task.ManagerName} ${words}: ${FATES[mine.Fate]?.[1] ?? mine.Fate}${
        mine.NextNodeName ? `, next by ${mine.NextNodeName}` : ""}.` : "Its manager has no allocation of it any more." });
    } catch (error) {
      say({ words: error.message });
    }
  };
  return html`<div class="tools"><button onClick=${() => look("drain", "is drained")}>If its manager is drained</button>
    <button onClick=${() => look("lost", "dies now")}>If its manager dies now</button>
    ${said && html`<span role="status" class=${FATES[said.fate]?.[0] ?? ""}>${plain(said.words)}</span>`}</div>`;
}
