// What the cluster looked like over the last hour, and what the tasks of an allocation use now.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { useEvery } from "../lib/api.js";
import { Chart } from "../lib/charts.js";
import { bytes } from "../lib/format.js";
import { Cli, Loaded, Title, useParam } from "../lib/parts.js";

const MIB = 1024 * 1024;
const plainly = (n) => `${Math.round(n * 100) / 100}`;
const CHARTS = [
  ["CPU", ["used", "of ready nodes"], (p) => [p.CpuUsed, p.CpuTotal], (n) => `${plainly(n)} MHz`],
  ["Memory", ["used", "of ready nodes"], (p) => [p.MemoryUsedMB, p.MemoryTotalMB], (n) => bytes(n * MIB)],
  ["Allocations", ["running", "wanted and not placed"], (p) => [p.AllocsRunning, p.Queued], plainly],
  ["Placements", ["placed since the point before"], (p) => [p.Placed], plainly],
  ["Remote tasks", ["hand-overs since the point before", "unmanaged"], (p) => [p.HandOvers, p.Unmanaged], plainly],
  ["Nodes", ["ready"], (p) => [p.NodesReady], plainly]];

/** How far back, in seconds; the first is what servers keep themselves. */
const RANGES = [["3600", "last hour"], ["21600", "last 6 hours"], ["86400", "last day"], ["604800", "last week"],
  ["2592000", "last month"]];

export function Trends() {
  const [range, setRange] = useParam("range", RANGES[0][0]);
  const features = useEvery("/v1/agent/features", 600_000);
  const knows = features.data?.[0]?.History;
  const [seconds, title] = RANGES.find(([s]) => s === range) ?? RANGES[0];
  const kept = seconds === RANGES[0][0];
  return html`<${Title}>The ${title}<//>${knows && html`<div class="tools"><label>Over <select aria-label="Over"
      value=${seconds} onChange=${(e) => setRange(e.target.value)}>${RANGES.map(([s, name]) => html`<option key=${s}
      value=${s}>the ${name}</option>`)}</select></label></div>`}
    <p class="soft">${kept ? html`As the server that leads has seen it; one that begins to lead begins anew.` :
      html`As Prometheus has collected it.`}${features.data && !knows && html` For longer, let Prometheus collect${" "}
      <code>/v1/metrics</code>, and name it in the agent's configuration: <code>drover { prometheus_url }</code>.`}</p>
    <${Points} key=${seconds} path=${kept ? "/v1/metrics/trends" : `/v1/metrics/history?seconds=${seconds}`}
      gapMs=${Math.max(60_000, Number(seconds) * 1000 / 60)} />`;
}

function Points({ path, gapMs }) {
  const live = useEvery(path, Math.max(10_000, gapMs / 10));
  return html`<${Loaded} live=${live}>${([points]) => html`<div class="charts">${CHARTS.map(([title, names, of, say]) => html`
      <${Chart} key=${title} title=${title} names=${names} say=${say} gapMs=${gapMs}
      points=${points.map((p) => ({ at: p.Time / 1e6, values: of(p) }))} />`)}</div>`}<//>
    <${Cli} line=${`drover operator api ${path}`} raw=${path} />`;
}

/** Ten minutes at one look every two seconds. */
const LOOKS = 300;

/** What an allocation uses, from the moment that its page is open. */
export function Usage({ alloc }) {
  const live = useEvery(`/v1/client/allocation/${alloc.ID}/stats`, 2000);
  const [points, set] = useState([]);
  const stats = live.data?.[0];
  useEffect(() => {
    const now = stats?.ResourceUsage;
    if (!now) return;
    const { MemoryStats: memory, CpuStats: cpu } = now;
    set((old) => [...old, { at: Date.now(), cpu: cpu?.TotalTicks ?? 0,
      memory: Math.max(memory?.Usage ?? 0, memory?.RSS ?? 0) }].slice(-LOOKS));
  }, [stats]);
  const tasks = Object.values(alloc.AllocatedResources?.Tasks ?? {});
  const most = (of) => tasks.reduce((sum, task) => sum + (of(task) ?? 0), 0);
  const limit = most((t) => (t.Memory?.MemoryMaxMB > 0 ? t.Memory.MemoryMaxMB : t.Memory?.MemoryMB)) * MIB;
  const shares = most((t) => t.Cpu?.CpuShares);
  const of = (value, other) => points.map((p) => ({ at: p.at, values: [p[value], other] }));
  if (live.error && !points.length) return null;
  return html`<div class="charts"><${Chart} title="CPU" names=${["used", "reserved"]} gapMs=${10_000}
      say=${(n) => `${Math.round(n)} MHz`} points=${of("cpu", shares)} />
    <${Chart} title="Memory" names=${["used", "limit"]} gapMs=${10_000} say=${bytes} points=${of("memory", limit)} /></div>`;
}
