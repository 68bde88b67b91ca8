// A job file that is typed, or the one of a job that is changed.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { Refused } from "../lib/api.js";
import { plain } from "../lib/format.js";
import { jobFrom, planOf, register } from "../lib/registration.js";
import { jobHref } from "../lib/routes.js";
import { jobOf, sourceOf } from "../lib/source.js";
import { Diff, Problem, Title } from "../lib/parts.js";
import { Why } from "./jobs.js";

/** Edit, plan, run: the plan's index is checked, so that nobody's change is overwritten unseen. */
export function Run({ id, namespace }) {
  const [text, setText] = useState("");
  const [variables, setVariables] = useState("");
  const [plan, setPlan] = useState(null);
  const [error, setError] = useState(null);
  const [done, setDone] = useState(null);
  useEffect(() => {
    if (!id) return undefined;
    const stop = new AbortController();
    sourceOf(id, namespace, null, stop.signal).then((source) => {
      // Whoever was faster than the answer loses nothing.
      setText((now) => now || source.text);
      setVariables((now) => now || source.variables);
    }, (e) => { if (!stop.signal.aborted) setError(e); });
    return () => stop.abort();
  }, [id, namespace]);
  const typed = (set) => (e) => { set(e.target.value); setPlan(null); setDone(null); };
  const guard = (step) => async () => { setError(null); try { await step(); } catch (e) { setError(e); } };
  const look = guard(async () => {
    const job = await jobFrom(text, variables, namespace);
    setPlan({ job, answer: await planOf(job) });
  });
  const run = guard(async () => {
    if (!plan) throw new Refused(0, "plan the job first");
    const source = { Source: text, Format: jobOf(text) ? "json" : "hcl2", Variables: variables };
    await register(plan.job, plan.answer.JobModifyIndex, source);
    setDone(plan.job);
  });
  return html`<${Title}>${id ? `Edit ${plain(id)}` : "Run a job"}<//>${error && html`<${Problem} error=${error} />`}
    <textarea aria-label="Job file" spellcheck="false" value=${text} onInput=${typed(setText)}></textarea>
    <details open=${variables !== ""}><summary>Variables of the file</summary><textarea class="short"
      aria-label="Variables" spellcheck="false" placeholder=${'image = "web:2"'} value=${variables}
      onInput=${typed(setVariables)}></textarea></details>
    <p class="tools"><button onClick=${look}>Plan</button>${plan && html`<button onClick=${run}>Run</button>`}</p>
    ${done && html`<div class="box" role="status">Registered: <a href=${jobHref(done.ID, done.Namespace)}>
      ${plain(done.ID)}</a></div>`}
    ${plan && html`<div class="box"><h2>What changes</h2><${Diff} diff=${plan.answer.Diff} />
      ${Object.entries(plan.answer.Annotations?.DesiredTGUpdates ?? {}).map(([group, n]) => html`<p>${plain(group)}:${" "}
        ${Object.entries(n).filter(([, v]) => v > 0).map(([k, v]) => `${k} ${v}`).join(", ") || "nothing changes"}</p>`)}
      ${plan.answer.Warnings && html`<p class="warn">${plain(plan.answer.Warnings)}</p>`}</div>
      ${plan.answer.FailedTGAllocs && html`<${Why} failed=${plan.answer.FailedTGAllocs} />`}`}`;
}
