// How a deployment went, allocation by allocation: when each was placed, when it ran, when it was healthy. Pure.

const ms = (ns) => (ns > 0 ? ns / 1e6 : 0);
const time = (text) => { const at = Date.parse(text ?? ""); return at > 0 ? at : 0; };

/** `[{id, name, canary, placed, started, judged, healthy}]` in milliseconds, the first placed first; 0 = not yet. */
export function waterfall(allocs) {
  return allocs.map((a) => {
    const started = Object.values(a.TaskStates ?? {}).map((t) => time(t.StartedAt)).filter((at) => at > 0);
    const said = a.DeploymentStatus;
    return { id: a.ID, name: a.Name, canary: Boolean(said?.Canary), placed: ms(a.CreateTime),
      started: started.length ? Math.max(...started) : 0, healthy: said?.Healthy ?? null,
      judged: said?.Healthy == null ? 0 : time(said.Timestamp) };
  }).sort((a, b) => a.placed - b.placed);
}

/** What a deployment waits for, as a sentence. */
export function waitsFor(deployment) {
  if (!["running", "paused", "pending", "blocked"].includes(deployment.Status)) return "";
  const groups = Object.entries(deployment.TaskGroups ?? {});
  const canaries = groups.filter(([, g]) => g.DesiredCanaries > 0 && !g.Promoted);
  const ready = canaries.filter(([, g]) => g.HealthyAllocs >= g.DesiredCanaries).map(([name]) => name);
  if (ready.length && ready.length === canaries.length) return `waits for somebody who promotes ${ready.join(", ")}`;
  const open = groups.filter(([, g]) => g.HealthyAllocs < (g.Promoted || !g.DesiredCanaries ? g.DesiredTotal : g.DesiredCanaries));
  return open.map(([name, g]) => {
    const wanted = g.Promoted || !g.DesiredCanaries ? g.DesiredTotal : g.DesiredCanaries;
    const told = (n, what) => `${name}: ${n} of ${wanted} ${n === 1 ? "is" : "are"} not ${what}`;
    return g.PlacedAllocs < wanted ? told(wanted - g.PlacedAllocs, "placed") : told(wanted - g.HealthyAllocs, "healthy yet");
  }).join(", ");
}
