// The versions of a job: what each has changed, their names, and the way back.
import { useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { useLive, write } from "../lib/api.js";
import { onlyStops } from "../lib/diff.js";
import { plain } from "../lib/format.js";
import { Act, Age, Dialog, Diff, Loaded, Problem, Table, useParam } from "../lib/parts.js";

/** Each version with what it has changed since the one before, or since one that is chosen. */
export function Versions({ job, path, ns }) {
  const [against, compare] = useParam("since");
  const [all, showAll] = useState(false);
  const live = useLive([`${path}/versions${ns}&diffs=true${against && `&diff_version=${against}`}`]);
  return html`<${Loaded} live=${live} key=${against}>${([given]) => {
    const rows = (given.Versions ?? []).map((v, i) => ({ ...v, diff: given.Diffs?.[i] }));
    const shown = all || against ? rows : rows.filter((v) => v.Version === job.Version || !onlyStops(v.diff));
    const hidden = rows.length - shown.length;
    return html`<div class="tools"><label>Changes since <select aria-label="Changes since" value=${against}
      onChange=${(e) => compare(e.target.value)}><option value="">the version before</option>${rows.map((v) => html`
      <option key=${v.Version} value=${v.Version}>version ${v.Version}${v.VersionTag &&
      ` (${plain(v.VersionTag.Name)})`}</option>`)}</select></label>
      ${(hidden > 0 || all) && html`<label><input type="checkbox" checked=${all} onChange=${(e) => showAll(e.target.checked)} />
        Also ${hidden || ""} that only stopped or started it</label>`}</div>
    <${Table} none="There is no version." heads=${["Version", "Submitted", "Stable", "What it changed", ""]} rows=${shown}
    row=${(v) => html`<tr key=${v.Version}><td class="num">${v.Version}${v.VersionTag && html`<div class="tag">${
      plain(v.VersionTag.Name)}</div><div class="soft">${plain(v.VersionTag.Description)}</div>`}</td>
    <td class="num"><${Age} at=${v.SubmitTime} past /></td><td>${v.Stable ? "yes" : "no"}</td>
    <td>${v.diff ? html`<${Diff} diff=${v.diff} />` : html`<span class="soft">${against === String(v.Version) ?
      "the one that others are compared with" : "the first that is kept"}</span>`}</td>
    <td><div class="tools">${v.Version === job.Version ? html`<span class="soft">current</span>` : html`<${Act} label="Revert"
      question=${`Register version ${v.Version} of ${job.ID} again?`} run=${() => write(`${path}/revert${ns}`,
      { JobID: job.ID, JobVersion: v.Version })} />`}${v.VersionTag ? html`<${Act} label="Remove tag"
      question=${`Take the tag ${v.VersionTag.Name} from version ${v.Version}? Then the version may be collected.`}
      run=${() => write(tagPath(path, v.VersionTag.Name, ns), undefined, "DELETE")} />` :
      html`<${Tag} version=${v.Version} path=${path} ns=${ns} />`}</div></td></tr>`} />`;
  }}<//>`;
}

const tagPath = (path, name, ns) => `${path}/versions/${encodeURIComponent(name)}/tag${ns}`;

/** A name for a version. It keeps the version, and is what `job revert` and `job history` take. */
function Tag({ version, path, ns }) {
  const [open, set] = useState(false);
  const [said, say] = useState(null);
  const [name, setName] = useState("");
  const [about, setAbout] = useState("");
  const go = async () => {
    try {
      await write(tagPath(path, name, ns), { Version: version, Description: about });
      set(false);
    } catch (error) { say(error); }
  };
  return html`<button onClick=${() => set(true)}>Tag</button>${open && html`<${Dialog} close=${() => set(false)}>
    <p>A tag names version ${version}, and keeps it.</p>${said && html`<${Problem} error=${said} />`}
    <p class="tools"><label>Name <input aria-label="Name of the tag" value=${name}
      onInput=${(e) => setName(e.target.value)} /></label></p>
    <p class="tools"><label>Description <input aria-label="Description of the tag" value=${about}
      onInput=${(e) => setAbout(e.target.value)} /></label></p>
    <p class="tools"><button disabled=${!name} onClick=${go}>Set tag</button>
      <button onClick=${() => set(false)}>Leave it</button></p><//>`}`;
}
