// Lists of evaluations. Pure.
import { remembered } from "./remembered.js";

/** What a filter is compared with, in small letters. */
export const evalWords = remembered((e) =>
  `${e.ID} ${e.Status} ${e.JobID} ${e.TriggeredBy} ${e.NodeID}`.toLowerCase());

const KINDS = { blocked: "warn", pending: "warn", failed: "bad" };

/** How many there are of each state and, of those that still wait, of each trigger: `[word, count, class]`. */
export const backlog = remembered((evals) => {
  const count = (list, of) => list.reduce((all, e) => all.set(of(e), (all.get(of(e)) ?? 0) + 1), new Map());
  const states = [...count(evals, (e) => e.Status)].map(([word, n]) => [word, n, KINDS[word] ?? ""]);
  const waits = evals.filter((e) => ["pending", "blocked"].includes(e.Status));
  return [...states, ...[...count(waits, (e) => e.TriggeredBy)].map(([word, n]) => [word, n, ""])];
});
