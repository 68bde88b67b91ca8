// The places of a job as cells.
import { html } from "../lib/html.js";
import { plain, state } from "../lib/format.js";
import { allocHref } from "../lib/routes.js";
import { places } from "../lib/slots.js";

/** One cell for each place of each group: its newest allocation, and which attempt that is. */
export const Grid = ({ job, allocs }) => (job.TaskGroups ?? []).map((group) => {
  const { cells, left } = places(group, allocs);
  return html`<div class="places" key=${group.Name}><span class="soft">${plain(group.Name)}</span><span class="squares">${cells.map((cell) => {
      const { kind, mark } = state(cell.word === "not placed" ? "pending" : cell.word);
      const words = `${group.Name}[${cell.index}]: ${cell.word}${cell.attempts > 1 ? `, attempt ${cell.attempts}` : ""}`;
      return cell.alloc ? html`<a key=${cell.index} class=${kind} href=${allocHref(cell.alloc.ID)} title=${words}
        aria-label=${words}>${cell.attempts > 1 ? cell.attempts : mark}</a>` : html`<span key=${cell.index} class=${kind}
        role="img" title=${words} aria-label=${words}>${mark}</span>`;
    })}</span>${left > 0 && html`<span class="soft">${cells.length ? "and " : ""}${left} that run or are complete</span>`}</div>`;
});
