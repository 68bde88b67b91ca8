// Colours of terminal output, as classes. Everything else that a program says to a terminal is left out. Pure.

const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
// CSI sequences, OSC sequences with their end, and other two-character escapes.
// eslint-disable-next-line no-control-regex
const ESCAPES = /\x1b(?:\[([0-9;:]*)([\x20-\x2f]*[@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])/g;

/** The style after a sequence `ESC [ codes m`. */
function styled(style, codes) {
  const next = { ...style };
  const all = codes === "" ? [0] : codes.split(/[;:]/).map(Number);
  for (let i = 0; i < all.length; i += 1) {
    const code = all[i];
    if (code === 0) { next.colour = ""; next.bold = false; }
    else if (code === 1) next.bold = true;
    else if (code === 22) next.bold = false;
    else if (code >= 30 && code <= 37) next.colour = COLOURS[code - 30];
    else if (code >= 90 && code <= 97) next.colour = COLOURS[code - 90];
    else if (code === 39) next.colour = "";
    // A colour of the large palettes: its numbers are not codes.
    else if (code === 38 || code === 48) i += all[i + 1] === 5 ? 2 : 4;
  }
  return next;
}

const named = ({ colour, bold }) => [colour && `ansi-${colour}`, bold && "ansi-bold"].filter(Boolean).join(" ");

const PLAIN = { colour: "", bold: false };

/** The style of what follows a text that begins with a style. */
export function styleAfter(text, begins = PLAIN) {
  let style = begins;
  if (text.includes("\x1b")) {
    for (const found of text.matchAll(ESCAPES)) if (found[2] === "m") style = styled(style, found[1]);
  }
  return style;
}

/** `[{text, name}]` of a text that begins with a style: neighbours differ in the names of their classes. */
export function coloured(text, begins = PLAIN) {
  if (!text.includes("\x1b")) return text ? [{ text, name: named(begins) }] : [];
  const out = [];
  let style = begins;
  let from = 0;
  const add = (part) => {
    const [last, name] = [out[out.length - 1], named(style)];
    if (part && last?.name === name) last.text += part;
    else if (part) out.push({ text: part, name });
  };
  for (const found of text.matchAll(ESCAPES)) {
    add(text.slice(from, found.index));
    from = found.index + found[0].length;
    if (found[2] === "m") style = styled(style, found[1]);
  }
  add(text.slice(from));
  return out;
}

/** The same text without any of it. */
export const bare = (text) => (text.includes("\x1b") ? text.replace(ESCAPES, "") : text);

/**
 * What a filter means: `/…/` or `/…/i` is a regular expression, all else the text itself. `{fits, wrong}`: a test of
 * a line, or why the expression cannot be read.
 */
export function filterOf(text) {
  const expression = /^\/(.+)\/(i?)$/.exec(text);
  if (!expression) return { fits: (line) => line.includes(text), wrong: "" };
  try {
    const made = new RegExp(expression[1], expression[2]);
    return { fits: (line) => made.test(line), wrong: "" };
  } catch (error) {
    return { fits: () => true, wrong: error.message };
  }
}
