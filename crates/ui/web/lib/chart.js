// Where the lines of a chart lie. Pure.

export const WIDE = 600;
export const HIGH = 120;

/** The first round number that is not below: 1, 2 or 5 with zeros. */
export function ceiling(n) {
  if (!(n > 0)) return 1;
  const ten = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 5, 10].map((step) => step * ten).find((top) => top >= n);
}

/**
 * `{top, lines, from, to}` of values over time, `lines` as points of SVG polylines. `points` are `{at, values}` with
 * the time in milliseconds, oldest first; a gap of over `gapMs` breaks a line.
 */
export function chart(points, gapMs) {
  const [from, to] = [points[0]?.at ?? 0, points[points.length - 1]?.at ?? 0];
  const top = ceiling(Math.max(0, ...points.flatMap((p) => p.values)));
  const x = (at) => ((at - from) / Math.max(1, to - from)) * WIDE;
  const y = (value) => HIGH - (Math.max(0, value) / top) * HIGH;
  const line = (i) => {
    const parts = [];
    points.forEach((p, n) => {
      if (n === 0 || p.at - points[n - 1].at > gapMs) parts.push([]);
      parts[parts.length - 1].push(`${x(p.at).toFixed(1)},${y(p.values[i]).toFixed(1)}`);
    });
    return parts.map((part) => part.join(" "));
  };
  return { top, from, to, lines: (points[0]?.values ?? []).map((_, i) => line(i)) };
}
