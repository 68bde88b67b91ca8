// The places of a job as cells.
import { html } from "../lib/html.js";
import { plain, state } from "../lib/format.js";
import { allocHref } from "../lib/routes.js";
import { places } from "../lib/slots.js";

/** A cell says which attempt it is at; the first has the mark of its state. */
function Cell({ cell }) {
  const { kind, mark } = state(cell.word === "not placed" ? "pending" : cell.word);
  const words = plain(`${cell.name}: ${cell.word}${cell.attempts > 1 ? `, attempt ${cell.attempts}` : ""}`);
  if (!cell.alloc) return html`<span class=${kind} role="img" title=${words} aria-label=${words}>${mark}</span>`;
  return html`<a class=${kind} href=${allocHref(cell.alloc.ID)} title=${words} aria-label=${words}>${
    cell.attempts > 1 ? cell.attempts : mark}</a>`;
}

/** One cell for each place of each group, with its newest allocation. */
export const Grid = ({ job, allocs }) => (job.TaskGroups ?? []).map((group) => {
  const { cells, left } = places(job, group, allocs);
  if (!cells.length && !left) return null;
  return html`<div class="places" key=${group.Name}><span class="soft">${plain(group.Name)}</span>
    <span class="squares">${cells.map((cell) => html`<${Cell} key=${cell.name} cell=${cell} />`)}</span>
    ${left > 0 && html`<span class="soft">${cells.length ? "and " : ""}${left} that run or are complete</span>`}</div>`;
});
