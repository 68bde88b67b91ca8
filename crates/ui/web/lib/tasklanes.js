// What the tasks of an allocation did on one axis of time. Pure.

const time = (text) => { const at = Date.parse(text ?? ""); return at > 0 ? at : 0; };

/**
 * `{from, to, lanes}` in milliseconds. A lane is `{name, spans, ticks}`: the spans in which the task ran, as
 * `{from, to, ends}` with the event that ended it, or null while it runs, and all events as `{at, type, words}`.
 */
export function taskLanes(states, nowMs) {
  const lanes = Object.entries(states ?? {}).map(([name, state]) => {
    const ticks = (state.Events ?? []).map((e) => ({ at: e.Time / 1e6, type: e.Type, words: e.DisplayMessage ||
      e.Message || e.Type })).sort((a, b) => a.at - b.at);
    const spans = [];
    for (const tick of ticks) {
      const open = spans.at(-1);
      if (tick.type === "Started") {
        // A node that has found its task again has no end between.
        if (open && !open.ends) continue;
        spans.push({ from: tick.at, to: 0, ends: null });
      } else if (["Terminated", "Killed", "Driver Failure"].includes(tick.type) && open && !open.ends) {
        [open.to, open.ends] = [tick.at, tick];
      }
    }
    // Events are kept up to a number: what the state says of the beginning is older than them.
    if (!spans.length && time(state.StartedAt)) spans.push({ from: time(state.StartedAt), to: 0, ends: null });
    const last = spans.at(-1);
    if (last && !last.to) last.to = time(state.FinishedAt) || nowMs;
    return { name, spans, ticks };
  });
  const all = lanes.flatMap((lane) => [...lane.ticks.map((tick) => tick.at),
    ...lane.spans.flatMap((s) => [s.from, s.to])]);
  const to = all.length ? Math.max(...all) : nowMs;
  return { from: all.length ? Math.min(...all) : nowMs, to, lanes: lanes.sort((a, b) =>
    (a.ticks[0]?.at ?? 0) - (b.ticks[0]?.at ?? 0)) };
}
