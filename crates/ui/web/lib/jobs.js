// How jobs of a list are: what is not as it should be, and which of them belong below others. Pure; what is asked for
// again of the same job or list is remembered, because a list of ten thousand is asked at each key of its filter.
import { remembered } from "./remembered.js";

/** Allocations of a job by state, over its groups. */
export function tally(job) {
  const sum = { Running: 0, Starting: 0, Queued: 0, Failed: 0, Lost: 0, Unknown: 0, Complete: 0 };
  Object.values(job.JobSummary?.Summary ?? {}).forEach((group) =>
    Object.keys(sum).forEach((name) => { sum[name] += group[name] ?? 0; }));
  return sum;
}

/** How many allocations a job wants now, whatever has become of them. */
export function wanted(job) {
  const n = tally(job);
  return job.Stop || job.Status === "dead" ? 0 : n.Running + n.Starting + n.Queued + n.Unknown;
}

/** Whether a whole job makes others, by the clock or by dispatch, and has no allocations itself. */
export const isParent = (job) => Boolean(job?.Periodic || (job?.ParameterizedJob && !job.Dispatched));

/** What a person looks for, as `[word, class, count]`, the worst first. */
export const faults = remembered((job) => {
  const n = tally(job);
  return [["not placed", "warn", n.Queued], ["failed", "bad", n.Failed], ["lost", "bad", n.Lost],
    ["unknown", "warn", n.Unknown], ["unmanaged", "warn", job.Unmanaged ?? 0],
    ["deploying", "idle", job.Deploying ? 1 : 0], ["starting", "idle", n.Starting]].filter(([, , count]) => count > 0);
});

/** How many jobs of a list have each fault, as `[word, count]`. */
export const faulty = remembered((jobs) => {
  const wrong = new Map();
  jobs.forEach((job) => faults(job).forEach(([word]) => wrong.set(word, (wrong.get(word) ?? 0) + 1)));
  return [...wrong];
});

/** What a filter is compared with, in small letters. */
export const words = remembered((job) => `${job.ID} ${job.Namespace} ${job.Type} ${job.Status} ${
  job.Orphan ? "orphan" : ""} ${faults(job).map(([word]) => word).join(" ")}`.toLowerCase());

/** One word for how a job went or goes. */
export function worst(job) {
  const n = tally(job);
  if (n.Failed || n.Lost) return n.Running ? "running" : "failed";
  if (n.Running || n.Starting) return "running";
  if (n.Queued) return "pending";
  return n.Complete ? "complete" : job.Status;
}

/**
 * The rows of a list without the children whose parent is in it; a child whose parent is gone is marked: nothing is
 * hidden that nobody else shows.
 */
export const folded = remembered((jobs) => {
  const there = new Set(jobs.map((job) => JSON.stringify([job.Namespace, job.ID])));
  return jobs.filter((job) => !job.ParentID || !there.has(JSON.stringify([job.Namespace, job.ParentID])))
    .map((job) => (job.ParentID ? { ...job, Orphan: true } : job));
});

/** The rows of a list that has not come whole: whose parent is missing is not known yet. */
export const unfolded = remembered((jobs) => jobs.filter((job) => !job.ParentID));
