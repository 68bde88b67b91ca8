// What the cluster looked like over the last hour, and what the tasks of an allocation use now.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { useEvery } from "../lib/api.js";
import { Chart } from "../lib/charts.js";
import { bytes } from "../lib/format.js";
import { Cli, Loaded, Title } from "../lib/parts.js";

const MIB = 1024 * 1024;
const plainly = (n) => `${Math.round(n * 100) / 100}`;
const CHARTS = [
  ["CPU", ["used", "of ready nodes"], (p) => [p.CpuUsed, p.CpuTotal], (n) => `${plainly(n)} MHz`],
  ["Memory", ["used", "of ready nodes"], (p) => [p.MemoryUsedMB, p.MemoryTotalMB], (n) => bytes(n * MIB)],
  ["Allocations", ["running", "wanted and not placed"], (p) => [p.AllocsRunning, p.Queued], plainly],
  ["Placements", ["placed since the point before"], (p) => [p.Placed], plainly],
  ["Remote tasks", ["hand-overs since the point before", "unmanaged"], (p) => [p.HandOvers, p.Unmanaged], plainly],
  ["Nodes", ["ready"], (p) => [p.NodesReady], plainly]];

export function Trends() {
  const live = useEvery("/v1/metrics/trends", 10_000);
  return html`<${Title}>The last hour<//><p class="soft">As the server that leads has seen it; one that begins to lead
    begins anew. For longer, collect <code>/v1/metrics</code> with Prometheus.</p>
    <${Loaded} live=${live}>${([points]) => html`<div class="charts">${CHARTS.map(([title, names, of, say]) => html`
      <${Chart} key=${title} title=${title} names=${names} say=${say} gapMs=${60_000}
      points=${points.map((p) => ({ at: p.Time / 1e6, values: of(p) }))} />`)}</div>`}<//>
    <${Cli} line="drover operator api /v1/metrics/trends" raw="/v1/metrics/trends" />`;
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
