// A job that makes others, by dispatch or by time: its last children, and the next one by hand.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { useLive, write } from "../lib/api.js";
import { encode } from "../lib/base64.js";
import { moment, plain, span, state } from "../lib/format.js";
import { jobHref } from "../lib/routes.js";
import { chosen } from "../lib/settings.js";
import { Act, Age, Loaded, Problem, State, Table } from "../lib/parts.js";
import { worst } from "../lib/jobs.js";

const LAST = 50;

/** When the clock launches it next: the servers say so in a plan, to whoever may make one. */
function useNextLaunch(job, path, ns) {
  const [next, set] = useState("");
  useEffect(() => {
    set("");
    if (!job.Periodic?.Enabled || job.Stop) return;
    write(`${path}/plan${ns}`, { Job: job, Diff: false }).then((plan) => set(plan.NextPeriodicLaunch ?? ""), () => {});
  }, [job.ID, job.Version, job.Stop]);
  return next.startsWith("0001") ? 0 : Date.parse(next);
}

export function Children({ job, ns, path }) {
  const next = useNextLaunch(job, path, ns);
  const live = useLive([`/v1/jobs?prefix=${encodeURIComponent(`${job.ID}/`)}&namespace=${encodeURIComponent(job.Namespace)}`]);
  const { Periodic: periodic, ParameterizedJob: template } = job;
  return html`${periodic && html`<div class="box"><dl><dt>Launched</dt><dd>${[periodic.Spec, ...(periodic.Specs ?? [])]
      .filter(Boolean).map((spec) => html`<code>${plain(spec)}</code> `)}${plain(periodic.TimeZone)}${
      periodic.Enabled ? "" : ", switched off"}</dd>
    ${next > 0 && html`<dt>Next launch</dt><dd>in ${span(next - Date.now())}, at${" "}
      ${moment(next * 1e6, chosen("zone"))}</dd>`}
    <dt>While one runs</dt><dd>${periodic.ProhibitOverlap ? "the next waits for its time after that" : "the next is launched beside it"}</dd>
    </dl></div><div class="tools"><${Act} label="Launch now" question=${`Launch ${job.ID} now, whatever the time is?`}
      run=${() => write(`${path}/periodic/force${ns}`, {})} /></div>`}
    ${template && !job.Stop && html`<${Dispatch} job=${job} ns=${ns} path=${path} />`}
    <h2>The last ${LAST}</h2><${Loaded} live=${live}>${([all]) => {
      const rows = all.filter((child) => child.ParentID === job.ID).sort((a, b) => b.SubmitTime - a.SubmitTime).slice(0, LAST);
      return html`<p class="squares">${[...rows].reverse().map((child) => {
        const word = worst(child);
        const { kind, mark } = state(word);
        return html`<a key=${child.ID} class=${kind} href=${jobHref(child.ID, child.Namespace)}
          title=${`${child.ID}: ${word}`} aria-label=${`${child.ID}: ${word}`}>${mark}</a>`;
      })}</p><${Table} heads=${["Job", "State", "Result", "Age"]} none="It has made no job that is kept." rows=${rows}
        row=${(child) => html`<tr key=${child.ID}><td class="name"><a href=${jobHref(child.ID, child.Namespace)}>${
        plain(child.ID)}</a></td><td><${State} word=${child.Status} /></td><td><${State} word=${worst(child)} /></td>
        <td class="num"><${Age} at=${child.SubmitTime} /></td></tr>`} />`;
    }}<//>`;
}

/** The form comes from what the template asks for. */
function Dispatch({ job, ns, path }) {
  const { MetaRequired: required, MetaOptional: optional, Payload: payload } = job.ParameterizedJob;
  const [meta, setMeta] = useState({});
  const [text, setText] = useState("");
  const [said, say] = useState(null);
  const [made, show] = useState(null);
  const go = async () => {
    say(null);
    try {
      const given = Object.fromEntries(Object.entries(meta).filter(([, value]) => value !== ""));
      show(await write(`${path}/dispatch${ns}`, { Meta: given, Payload: text ? encode(text) : undefined }));
    } catch (error) { say(error); }
  };
  const field = (key, must) => html`<p class="tools" key=${key}><label>${plain(key)}${must ? "" : " (optional)"}
    <input aria-label=${key} value=${meta[key] ?? ""} onInput=${(e) => setMeta({ ...meta, [key]: e.target.value })} /></label></p>`;
  return html`<div class="box"><h2>Dispatch</h2>${said && html`<${Problem} error=${said} />`}
    ${(required ?? []).map((key) => field(key, true))}${(optional ?? []).map((key) => field(key, false))}
    ${payload !== "forbidden" && html`<p>Payload${payload === "required" ? "" : " (optional)"}</p><textarea
      class="short" aria-label="Payload" value=${text} onInput=${(e) => setText(e.target.value)}></textarea>`}
    <p class="tools"><button onClick=${go}>Dispatch</button>${made && html`<span role="status">Made:${" "}
      <a href=${jobHref(made.DispatchedJobID, job.Namespace)}>${plain(made.DispatchedJobID)}</a></span>`}</p></div>`;
}
