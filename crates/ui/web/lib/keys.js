// What a key means, alone or after another one. Pure.

/** Two keys belong together when no more time lies between them. */
export const TOGETHER_MS = 1000;

/** Keys that mean the same on each page, for the list of them. */
export const EVERYWHERE = [["/", "Filter"], ["j", "Next row"], ["k", "Previous row"], ["Enter", "Open the row"],
  ["u", "Up"], ["Shift →", "Next tab"], ["Shift ←", "Previous tab"], ["Shift ↓", "Next page"],
  ["Shift ↑", "Previous page"], ["Ctrl K", "Go to anything"], ["Shift 0 1", "Open row 1"],
  ["Shift", "Held: show keys"], ["?", "These keys"]];

/**
 * The meaning of `key` after `before`, which is empty where that was too long ago: one of `{go: path}`, `{step: rows}`,
 * `{tab: tabs}`, `{page: pages}`, `{press: keys}` (something of this page, by its keys), `{find}`, `{help}`, `{up}`, or
 * null. `pages` are `[path, title, letter]`, reached with `g` and the letter; `here` are the keys of this page.
 */
export function meaning(before, key, shift, pages, here) {
  if (shift) {
    const moves = { ArrowRight: { tab: 1 }, ArrowLeft: { tab: -1 }, ArrowDown: { page: 1 }, ArrowUp: { page: -1 } };
    if (moves[key]) return moves[key];
  }
  if (before === "g") {
    const page = pages.find(([, , letter]) => letter && letter === key);
    return page ? { go: `/ui/${page[0]}` } : null;
  }
  if (before && here.includes(before + key)) return { press: before + key };
  if (here.includes(key)) return { press: key };
  return { "?": { help: true }, "/": { find: true }, j: { step: 1 }, k: { step: -1 }, u: { up: true } }[key] ?? null;
}

/**
 * The row that two digits with Shift open: `{begun}` after the first one, `{open: number}` after both, null for all
 * else. `before` is what the first one has begun.
 */
export function rowOf(before, code, shift) {
  const digit = /^Digit(\d)$/.exec(code ?? "")?.[1];
  if (!shift || !digit) return null;
  const first = /^row (\d)$/.exec(before)?.[1];
  return first ? { open: Number(first + digit) } : { begun: `row ${digit}` };
}
