// The file that a job was registered with.
import { read } from "./api.js";
import { variablesOf } from "./variables.js";

/** The job of a text that is JSON, as a file or as the API has it; null where it is HCL. */
export function jobOf(text) {
  if (!text.trim().startsWith("{")) return null;
  const parsed = JSON.parse(text);
  // Such a key is of a job file in JSON, which the server parses.
  return parsed.job ? null : parsed.Job ?? parsed;
}

/**
 * `{text, variables, kept}` of a version of a job, the newest for null. `kept` is false where the servers have no file,
 * as for a job of a program: then it is the job as JSON.
 */
export async function sourceOf(id, namespace, version, signal) {
  const [path, ns] = [`/v1/job/${encodeURIComponent(id)}`, `namespace=${encodeURIComponent(namespace)}`];
  const job = version === null ? await read(`${path}?${ns}`, signal) : { Version: version };
  try {
    const found = await read(`${path}/submission?version=${job.Version}&${ns}`, signal);
    return { text: found.Source, variables: variablesOf(found), kept: true };
  } catch (error) {
    if (error.status !== 404 || version !== null) throw error;
    return { text: JSON.stringify({ Job: job }, null, 2), variables: "", kept: false };
  }
}
