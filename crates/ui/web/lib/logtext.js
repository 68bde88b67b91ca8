// The text of a log that grows at its end and is cut at its beginning, in blocks: what has not changed is the same
// object as before, so that it need not be drawn again. Pure.
import { styleAfter } from "./ansi.js";

/** Characters of a block, about. */
const BLOCK = 8_000;

export const EMPTY = { blocks: [], size: 0 };

/** Where a block of `text` ends: after the last line that fits, or in the middle of one that is longer than a block. */
const cut = (text) => (text.length <= BLOCK ? text.length : text.lastIndexOf("\n", BLOCK) + 1 || BLOCK);

/**
 * `{log, dropped}`: the log with `more` at its end, and how many characters that leaves out at its beginning, so that
 * about `kept` stay. A block is `{text, style}` with the style that its first character has.
 */
export function grown(log, more, kept) {
  const over = Math.max(0, more.length - kept);
  const blocks = over ? [] : log.blocks.slice();
  let [size, dropped] = over ? [0, log.size + over] : [log.size, 0];
  // The last block is not full.
  const last = blocks.at(-1)?.text.length < BLOCK ? blocks.pop() : undefined;
  let text = (last?.text ?? "") + more.slice(over);
  const before = blocks.at(-1);
  let style = last?.style ?? (before && styleAfter(before.text, before.style));
  size += more.length - over;
  while (text) {
    const end = cut(text);
    const block = { text: text.slice(0, end), style };
    blocks.push(block);
    text = text.slice(end);
    if (text) style = styleAfter(block.text, style);
  }
  let first = 0;
  while (size > kept && first < blocks.length - 1) {
    size -= blocks[first].text.length;
    dropped += blocks[first].text.length;
    first += 1;
  }
  return { log: { blocks: blocks.slice(first), size }, dropped };
}

/** All of it. */
export const whole = (log) => log.blocks.map((block) => block.text).join("");
