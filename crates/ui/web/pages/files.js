// The files of an allocation. Nothing of them is ever markup: their text is shown as text.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { ask, read } from "../lib/api.js";
import { bytes, plain } from "../lib/format.js";
import { allocHref, filesHref } from "../lib/routes.js";
import { Age, Cli, Problem, Table, Title } from "../lib/parts.js";
import { save } from "../lib/save.js";

/** How much of the end of a file is shown. */
const TAIL = 64 * 1024;

const asked = (what, id, path) => `/v1/client/fs/${what}/${encodeURIComponent(id)}?path=${encodeURIComponent(path)}`;

/** The way from the top of the allocation to a file, each part a link. */
const Way = ({ id, path }) => {
  const parts = path.split("/").filter(Boolean);
  return html`<p class="tools"><a href=${filesHref(id, "/")}>top</a>${parts.map((part, i) => html`
    <span aria-hidden="true">/</span><a href=${filesHref(id, parts.slice(0, i + 1).join("/"))}>${plain(part)}</a>`)}</p>`;
};

export function Files({ id, path }) {
  const [got, set] = useState(null);
  const [again, look] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    (async () => {
      try {
        const stat = await read(asked("stat", id, path), stop.signal);
        if (stat.IsDir) return set({ stat, list: await read(asked("ls", id, path), stop.signal) });
        const from = Math.max(0, stat.Size - TAIL);
        const reply = await ask(`${asked("readat", id, path)}&offset=${from}&limit=${TAIL}`, { signal: stop.signal });
        const data = new Uint8Array(await reply.arrayBuffer());
        // A byte that no text has: what follows would be noise.
        const text = data.includes(0) ? null : new TextDecoder().decode(data);
        return set({ stat, from, text });
      } catch (error) {
        return stop.signal.aborted ? null : set({ error });
      }
    })();
    return () => stop.abort();
  }, [id, path, again]);
  const name = path.split("/").filter(Boolean).pop() ?? "files";
  const keep = () => save(asked("cat", id, path), name).catch((error) => set({ ...got, failed: error }));
  const below = (entry) => filesHref(id, `${path.replace(/\/$/, "")}/${entry.Name}`);
  return html`<${Title}>Files<//><p>Allocation <a href=${allocHref(id)}>${plain(id.slice(0, 8))}</a></p>
    <${Way} id=${id} path=${path} />
    ${!got && html`<p class="soft" role="status">Loading…</p>`}
    ${got?.error && html`<${Problem} error=${got.error} />`}
    ${got?.failed && html`<${Problem} error=${got.failed} />`}
    ${got?.list && html`<${Table} heads=${["Name", "Size", "Mode", "*Changed"]} none="The directory is empty."
      rows=${[...got.list].sort((a, b) => Number(b.IsDir) - Number(a.IsDir) || a.Name.localeCompare(b.Name))}
      row=${(e) => html`<tr key=${e.Name}><td class="name"><a href=${below(e)}>${plain(e.Name)}${e.IsDir ? "/" : ""}</a></td>
      <td class="num">${e.IsDir ? "" : bytes(e.Size)}</td><td class="num">${plain(e.FileMode)}</td>
      <td class="wide num"><${Age} at=${Date.parse(e.ModTime) * 1e6} past /></td></tr>`} />`}
    ${got?.stat && !got.stat.IsDir && html`<div class="tools"><span>${bytes(got.stat.Size)}</span>
      <button onClick=${() => look(again + 1)}>Read again</button><button onClick=${keep}>Download</button></div>
      ${got.from > 0 && html`<p class="soft">The last ${bytes(TAIL)} of it:</p>`}
      <div class="box">${got.text === null ? html`<p class="soft">It is no text. Download it to look at it.</p>` :
        html`<pre class="log" tabindex="0" aria-label="File">${plain(got.text) || "The file is empty."}</pre>`}</div>`}
    <${Cli} line=${`drover alloc fs ${id} ${path}`} raw=${asked(got?.list ? "ls" : "stat", id, path)} />`;
}
