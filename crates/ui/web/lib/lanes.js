// The lanes of a remote task's managers, from the events of its record. Pure.

/** Points that a server keeps. One that has more seen than these no longer shows when it began. */
const POINTS = 360;

/** When the server that leads began to lead, in milliseconds, from the points of its last hour; 0 = longer ago. */
export const ledSince = (points) => (points.length && points.length < POINTS ? points[0].Time / 1e6 : 0);

/** Servers of an earlier release told the kind of an event in its message only. */
const unmanaged = (event) => event.kind === "unmanaged" || (!event.kind && event.message.startsWith("unmanaged"));

/**
 * One lane for each epoch that the events show, and the gaps in which nobody managed the task, in milliseconds. A gap
 * begins with an event of the kind "unmanaged" and ends with the next epoch; the record says since when one lasts now.
 */
export function lanes(task, nowMs) {
  const events = (task.History ?? []).map((e) => ({ at: e.Time / 1e6, epoch: e.Epoch, message: e.Message,
    kind: e.Kind, node: e.To }));
  events.sort((a, b) => a.at - b.at);
  const out = [];
  const gaps = [];
  for (const event of events) {
    const last = out[out.length - 1];
    if (last && last.epoch === event.epoch) {
      if (unmanaged(event)) last.to = event.at;
      continue;
    }
    if (last) {
      if (last.to < event.at) gaps.push({ from: last.to, to: event.at });
      last.to = Math.min(last.to, event.at);
    }
    out.push({ epoch: event.epoch, from: event.at, to: nowMs, message: event.message, node: event.node });
  }
  const gap = task.Unmanaged && task.UnmanagedSince > 0 ? task.UnmanagedSince / 1e6 : 0;
  const last = out[out.length - 1];
  if (gap && last) last.to = Math.max(last.from, gap);
  if (gap) gaps.push({ from: gap, to: nowMs });
  // The record's history may begin before this instance: the axis is the instance's.
  const from = task.StartedAt > 0 ? task.StartedAt / 1e6 : out[0]?.from ?? nowMs;
  const shown = out.filter((lane) => lane.to > from).map((lane) => ({ ...lane, from: Math.max(lane.from, from) }));
  const seen = gaps.filter((g) => g.to > from).map((g) => ({ ...g, from: Math.max(g.from, from) }));
  return { lanes: shown, gaps: seen, now: gap > 0, from, to: nowMs };
}
