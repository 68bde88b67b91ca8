// A chart with its table: whoever does not see the lines reads the numbers.
import { html } from "./html.js";
import { chart, HIGH, WIDE } from "./chart.js";
import { span } from "./format.js";
import { Table } from "./parts.js";

/** `names` of the values in each of `points`; `say` makes text of a value. */
export function Chart({ title, names, points, say, gapMs }) {
  const { top, from, to, lines } = chart(points, gapMs);
  const last = points[points.length - 1];
  const time = (ms) => new Date(ms).toLocaleTimeString();
  return html`<section class="box chart"><h2>${title}</h2>
    <p class="key">${names.map((name, i) => html`<span class=${`line${i}`}>${["━", "╍"][i]} ${name}: ${
      last ? say(last.values[i]) : "–"}</span> `)}</p>
    ${points.length < 2 ? html`<p class="soft">The first points come within half a minute.</p>` : html`
      <svg viewBox=${`0 0 ${WIDE} ${HIGH}`} preserveAspectRatio="none" role="img" aria-label=${`${title} over ${
        span(to - from)}, at most ${say(top)}`}><path class="axis" d=${`M0 ${HIGH / 2}H${WIDE}M0 ${HIGH}H${WIDE}M0 0H${WIDE}`} />
      ${lines.map((parts, i) => parts.map((part) => html`<polyline class=${`line${i}`} points=${part} />`))}</svg>
      <p class="soft ends"><span>${span(to - from)} ago</span><span>top ${say(top)}</span><span>now</span></p>
      <details><summary>As a table</summary><${Table} heads=${["Time", ...names]} none="" rows=${[...points].reverse()}
        row=${(p) => html`<tr key=${p.at}><td class="num">${time(p.at)}</td>${p.values.map((value) => html`
        <td class="num">${say(value)}</td>`)}</tr>`} /></details>`}</section>`;
}
