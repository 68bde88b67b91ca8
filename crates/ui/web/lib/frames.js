// The stream in which an agent tells of a file or a log: JSON objects one after the other, without separators. Pure.

/**
 * Takes whole objects from the front of `text`: `{frames, rest}`. What is no object, as the sentence with which an
 * agent ends a stream that cannot go on, stays in `rest`.
 */
export function frames(text) {
  const out = [];
  let [start, quoted, escaped] = [0, false, false];
  for (let i = 0; i < text.length && text[start] === "{"; i += 1) {
    const c = text[i];
    if (escaped) escaped = false;
    else if (quoted) [escaped, quoted] = [c === "\\", c !== "\""];
    else if (c === "\"") quoted = true;
    else if (c === "}") {
      // Frames are flat: the first bracket outside of a text ends them.
      out.push(JSON.parse(text.slice(start, i + 1)));
      start = i + 1;
    }
  }
  return { frames: out, rest: text.slice(start) };
}

/**
 * Where the output of a remote task is read on after a stream has ended: `{at: allocation, node}` where another
 * allocation has the instance, `{here: true, ended}` where the same one has it, `{nobody: true}` while no node manages
 * it, null where the instance has ended. `records` are of its slot, `incarnation` is the one that is read.
 */
export function onward(records, slot, incarnation, alloc) {
  const record = records.find((r) => r.SlotName === slot && r.IncarnationID === incarnation);
  if (!record) return null;
  const ended = ["Exited", "Gone"].includes(record.Observed?.State);
  const of = record.Manager?.AllocID;
  if (!record.Manager) return ended ? null : { nobody: true };
  // An allocation of none: the record is from before managers had one.
  if (!of || of === alloc || /^[0-]+$/.test(of)) return { here: true, ended };
  return { at: of, node: record.ManagerName };
}
