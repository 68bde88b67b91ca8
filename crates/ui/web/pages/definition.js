// What a job is: the file that it was registered with, and what the servers have made of it.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { plain } from "../lib/format.js";
import { Problem } from "../lib/parts.js";
import { editHref } from "../lib/routes.js";
import { sourceOf } from "../lib/source.js";

export function Definition({ job }) {
  const [source, setSource] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    const stop = new AbortController();
    sourceOf(job.ID, job.Namespace, job.Version, stop.signal).then(setSource,
      // There is none of a job that a program has registered.
      (e) => { if (!stop.signal.aborted && e.status !== 404) setError(e); });
    return () => stop.abort();
  }, [job.ID, job.Namespace, job.Version]);
  return html`<p class="tools"><a href=${editHref(job.ID, job.Namespace)}>Edit</a></p>
    ${error && html`<${Problem} error=${error} />`}
    ${source && html`<h2>Job file</h2><div class="box"><pre>${plain(source.text)}</pre></div>
      ${source.variables && html`<h2>Variables</h2><div class="box"><pre>${plain(source.variables)}</pre></div>`}`}
    <h2>As the servers keep it</h2><div class="box"><pre>${plain(JSON.stringify(job, null, 2))}</pre></div>`;
}
