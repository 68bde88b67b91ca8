// The places of a job, one for each allocation that it wants at once, and how the job is in a sentence. Pure.
import { unplaced } from "./format.js";
import { isParent } from "./jobs.js";

const indexOf = (name) => Number(/\[(\d+)\]$/.exec(name)?.[1] ?? -1);

/** Most places that are drawn; of more, those are shown that are not as they should be. */
export const SHOWN = 200;

/** A system job has a place on each node. */
const everywhere = (job) => ["system", "sysbatch"].includes(job.Type);

/**
 * The places of one group: `{cells, left}`. A cell is `{name, alloc, word, attempts}` with the newest allocation there;
 * one without an allocation is not placed. `left` are the places that are as they should be and not among the cells.
 */
export function places(job, group, allocs) {
  const newest = new Map();
  for (const a of allocs.filter((each) => each.TaskGroup === group.Name)) {
    const place = everywhere(job) ? a.NodeID : indexOf(a.Name);
    if (!(newest.get(place)?.CreateIndex > a.CreateIndex)) newest.set(place, a);
  }
  const wants = !everywhere(job) && !isParent(job) && !job.Stop && job.Status !== "dead";
  const wanted = Array.from({ length: wants ? Math.min(group.Count, 100_000) : 0 }, (_, index) => index);
  // Beyond what is wanted, what has not ended yet counts.
  const others = [...newest].filter(([place, a]) => !wants || place >= group.Count &&
    ["running", "pending"].includes(a.ClientStatus)).map(([place]) => place);
  const all = [...wanted, ...others].map((place) => {
    const alloc = newest.get(place) ?? null;
    return { name: everywhere(job) ? `${group.Name} on ${alloc.NodeName}` : `${group.Name}[${place}]`, alloc,
      word: alloc?.ClientStatus ?? "not placed", attempts: (alloc?.RescheduleTracker?.Events?.length ?? 0) + 1 };
  });
  if (all.length <= SHOWN) return { cells: all, left: 0 };
  const cells = all.filter((cell) => !["running", "complete"].includes(cell.word)).slice(0, SHOWN);
  return { cells, left: all.length - cells.length };
}

/** Nodes with how many allocations of each state a job has there, the one with the most trouble first. */
export function nodesOf(allocs) {
  const nodes = new Map();
  for (const a of allocs) {
    const node = nodes.get(a.NodeID) ?? { id: a.NodeID, name: a.NodeName || a.NodeID.slice(0, 8), states: {} };
    node.states[a.ClientStatus] = (node.states[a.ClientStatus] ?? 0) + 1;
    nodes.set(a.NodeID, node);
  }
  const bad = (n) => (n.states.failed ?? 0) + (n.states.lost ?? 0) + (n.states.unknown ?? 0);
  return [...nodes.values()].sort((a, b) => bad(b) - bad(a) || a.name.localeCompare(b.name));
}

/** Whether something of the job waits before it ends (`shutdown_delay`), which can be left out. */
export const delays = (job) => (job?.TaskGroups ?? []).some((group) => group.ShutdownDelay > 0 ||
  (group.Tasks ?? []).some((task) => task.ShutdownDelay > 0));

const some = (n, one, more) => `${n} ${n === 1 ? one : more}`;

/** How the job is: `[class, sentence]`, with the first reason why it is not as it should be. */
export function verdict(job, allocs, evals) {
  if (job.Stop) return ["idle", "It is stopped."];
  if (isParent(job)) return ["good", "It makes other jobs."];
  const cells = (job.TaskGroups ?? []).flatMap((group) => places(job, group, allocs).cells);
  const blocked = evals.find((e) => e.Status === "blocked");
  const [group, metric] = Object.entries(blocked?.FailedTGAllocs ?? {})[0] ?? [];
  if (group) return ["bad", `Not everything of ${group} is placed: ${unplaced(metric).slice(0, 2).join("; ")}.`];
  for (const [word, kind] of [["failed", "bad"], ["lost", "bad"], ["unknown", "warn"]]) {
    const cell = cells.find((each) => each.word === word);
    const again = cell?.attempts > 1 ? `, at attempt ${cell.attempts}` : "";
    const why = (cell?.alloc.ClientDescription ?? "").replace(/\.$/, "");
    if (cell) return [kind, `${cell.name} is ${word}${again}${why && `: ${why}`}.`];
  }
  const lone = (job.RemoteTasks ?? []).filter((r) => r.Unmanaged).length;
  if (lone) {
    return ["warn", `${some(lone, "remote task is", "remote tasks are")} managed by no node; the work goes on.`];
  }
  if (job.Status === "dead") return ["idle", "It has run to its end."];
  const waits = cells.filter((cell) => ["pending", "not placed"].includes(cell.word)).length;
  if (waits) return ["warn", `${some(waits, "allocation does", "allocations do")} not run yet.`];
  const runs = allocs.filter((a) => a.ClientStatus === "running").length;
  if (!runs) return ["good", "It wants no allocation."];
  return ["good", `All is well: ${some(runs, "allocation runs", "allocations run")}.`];
}
