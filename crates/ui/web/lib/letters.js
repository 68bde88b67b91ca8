// Which letters a person has chosen for what keys mean. Pure.

/** What has a letter on any page, with the letter that it has until somebody chooses another. */
export const LETTERS = [["g", "To a page, before its letter"], ["/", "Filter"], ["j", "Next row"],
  ["k", "Previous row"], ["u", "Up"], ["?", "List of keys"], ["l", "Log"], ["x", "Exec"], ["e", "Evaluations"],
  ["d", "Definition"], ["f", "Files"], ["w", "Wrap lines, pressed twice"]];

/** Letters of pages come after another one: they are apart. */
export const ofPage = (letter) => `g ${letter}`;

/** All that can be chosen, as `[id, title]`. `pages` are `[path, title, letter]`. */
export const all = (pages) => [...LETTERS, ...pages.filter(([, , letter]) => letter)
  .map(([, title, letter]) => [ofPage(letter), title])];

const bare = (id) => id.replace(/^g /, "");
const apart = (id) => id.length > 1;

/** The letter that this has now. */
export const letterOf = (chosen, id) => chosen[id] ?? bare(id);

/** The letter that `key` stands for, after `g` or alone; empty where its meaning has gone to another key. */
export function meant(chosen, after, key) {
  const id = (letter) => (after ? ofPage(letter) : letter);
  const other = Object.keys(chosen).find((each) => apart(each) === after && chosen[each] === key);
  if (other) return bare(other);
  return chosen[id(key)] ? "" : key;
}

/** `{chosen}` with another letter for `id`, its first one for an empty text; `{wrong}`: why that cannot be. */
export function choosing(chosen, id, key, pages) {
  const { [id]: before, ...rest } = chosen;
  if (!key || key === bare(id)) {
    const now = all(pages).find(([each]) => each !== id && apart(each) === apart(id) && rest[each] === bare(id));
    return now ? { wrong: `${bare(id)} means "${now[1]}": give that another letter first.` } : { chosen: rest };
  }
  if ([...key].length !== 1 || key.trim() === "") return { wrong: "A key is one letter, digit or sign." };
  const other = all(pages).find(([each]) => each !== id && apart(each) === apart(id) && letterOf(chosen, each) === key);
  return other ? { wrong: `${key} means "${other[1]}": give that another letter first.` } :
    { chosen: { ...rest, [id]: key } };
}
