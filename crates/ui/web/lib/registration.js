// A job from its text to the servers: in the namespace that the text names, else in that of the job that is changed.
import { write } from "./api.js";
import { jobOf } from "./source.js";

/** The job of a text. `namespace` is that of the job that is changed, undefined for a new one. */
export async function jobFrom(text, variables, namespace) {
  // With the defaults filled in, nobody could tell which namespace the text itself names.
  const job = jobOf(text) ?? await write("/v1/jobs/parse", { JobHCL: text, Variables: variables, Canonicalize: false });
  return { ...job, Namespace: job.Namespace || namespace || "default" };
}

// The servers take the namespace of the query before that of the job: without one it would be "default" for them.
const within = (job) => `namespace=${encodeURIComponent(job.Namespace)}`;

/** What a registration of this job would change. */
export const planOf = (job) =>
  write(`/v1/job/${encodeURIComponent(job.ID)}/plan?${within(job)}`, { Job: job, Diff: true });

/** Registers a job as planned, unless somebody has changed it meanwhile. `source` is what the servers keep of it. */
export const register = (job, index, source) =>
  write(`/v1/jobs?${within(job)}`, { Job: job, EnforceIndex: true, JobModifyIndex: index, Submission: source });
