// The places of a job, one for each allocation that it wants at once, and how the job is in a sentence. Pure.
import { unplaced } from "./format.js";

const indexOf = (name) => Number(/\[(\d+)\]$/.exec(name)?.[1] ?? -1);

/** Most places that are drawn; of more, those are shown that are not as they should be. */
export const SHOWN = 200;

/**
 * The places of one group: `{cells, left}`. A cell is `{index, alloc, word, attempts}` with the newest allocation there;
 * one without an allocation is not placed. `left` are the places that are as they should be and not among the cells.
 */
export function places(group, allocs) {
  const at = new Map();
  for (const a of allocs.filter((each) => each.TaskGroup === group.Name)) {
    const index = indexOf(a.Name);
    const old = at.get(index);
    const newer = !old || a.CreateIndex > old.alloc.CreateIndex;
    at.set(index, { index, alloc: newer ? a : old.alloc, attempts: (old?.attempts ?? 0) + 1 });
  }
  const wanted = Array.from({ length: Math.min(group.Count, 100_000) }, (_, index) => at.get(index) ??
    { index, alloc: null, attempts: 0 });
  const more = [...at.values()].filter((cell) => cell.index >= group.Count && ["running", "pending"]
    .includes(cell.alloc.ClientStatus));
  const all = [...wanted, ...more].map((cell) => ({ ...cell, word: cell.alloc?.ClientStatus ?? "not placed" }));
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

const some = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

/** How the job is: `[class, sentence]`, with the first reason why it is not as it should be. */
export function verdict(job, allocs, evals) {
  if (job.Stop) return ["idle", "It is stopped."];
  if (job.Periodic || job.ParameterizedJob && !job.Dispatched) return ["good", "It makes other jobs."];
  const groups = job.TaskGroups ?? [];
  const all = groups.map((group) => [group, places(group, allocs)]);
  const cells = all.flatMap(([group, { cells: here }]) => here.map((cell) => ({ ...cell, group: group.Name })));
  const blocked = evals.find((e) => e.Status === "blocked");
  if (blocked) {
    const [group, metric] = Object.entries(blocked.FailedTGAllocs ?? {})[0] ?? [];
    if (group) return ["bad", `Not everything of ${group} is placed: ${unplaced(metric).slice(0, 2).join("; ")}.`];
  }
  const first = (word) => cells.find((cell) => cell.word === word);
  for (const word of ["failed", "lost", "unknown"]) {
    const cell = first(word);
    if (cell) {
      const why = cell.alloc.ClientDescription ? `: ${cell.alloc.ClientDescription}` : "";
      const again = cell.attempts > 1 ? `, at attempt ${cell.attempts}` : "";
      return [word === "unknown" ? "warn" : "bad", `${cell.alloc.Name} is ${word}${again}${why}.`.replace("..", ".")];
    }
  }
  const lone = (job.RemoteTasks ?? []).filter((r) => r.Unmanaged).length;
  if (lone) return ["warn", `${some(lone, "remote task")} ${lone === 1 ? "is" : "are"} managed by no node; the work goes on.`];
  const waits = cells.filter((cell) => ["pending", "not placed"].includes(cell.word)).length;
  if (waits && job.Status !== "dead") return ["warn", `${some(waits, "allocation")} ${waits === 1 ? "does" : "do"} not run yet.`];
  if (job.Status === "dead") return ["idle", "It has run to its end."];
  if (!["service", "batch"].includes(job.Type)) {
    const n = allocs.filter((a) => a.ClientStatus === "running").length;
    return ["good", `${some(n, "allocation")} ${n === 1 ? "runs" : "run"}, on each node that takes it.`];
  }
  const n = all.reduce((sum, [, p]) => sum + p.left, 0) + cells.filter((cell) => cell.word === "running").length;
  return ["good", n ? `All is well: ${some(n, "allocation")} ${n === 1 ? "runs" : "run"}.` : "It wants no allocation."];
}
