// Follows the output of a task. That of a remote one goes on whichever node manages it: positions are absolute, so that
// nothing is missing and nothing comes twice when management moves.
import { ask, busy, read } from "./api.js";
import { decode } from "./base64.js";
import { frames, onward } from "./frames.js";

/** Between two looks at who manages the task now. */
const PAUSE_MS = 500;

const logsOf = (alloc, task, kind, more) =>
  `/v1/client/fs/logs/${alloc}?${new URLSearchParams({ task, type: kind, ...more })}`;

/** Where the whole of it is read, by allocation. */
export const wholeLog = (alloc, task, kind) => logsOf(alloc, task, kind, { plain: true });

/** The record of the task among those of its allocation; undefined for a task that runs on the node itself. */
const recordOf = (alloc, task) => (alloc.RemoteTasks ?? []).find((r) => r.SlotName.endsWith(`/${task}`));

/**
 * Tells `text` what comes, from `back` bytes before the end on, with the position of its first byte, and `managed` how
 * it stands when management moves, with the allocation that has the output then. Ends when the task has ended, or with
 * `signal`; fails with what the agent says when the output cannot be read.
 */
export async function follow({ alloc, task, kind, back, signal, text, managed }) {
  const record = recordOf(alloc, task);
  const decoder = new TextDecoder();
  let from = { origin: "end", offset: back };
  let at = alloc.ID;
  let troubled = false;
  const once = async () => {
    // A node that is too busy may not be the one to ask any more.
    const reply = await ask(logsOf(at, task, kind, { follow: true, ...from }), { signal, patient: !record });
    if (troubled) managed("", at);
    troubled = false;
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (signal.aborted) return;
      const found = frames(rest + (value ?? ""));
      rest = found.rest;
      for (const frame of found.frames.filter((each) => each.Data)) {
        const data = decode(frame.Data);
        text(decoder.decode(data, { stream: true }), frame.Offset - data.length);
        from = { origin: "start", offset: frame.Offset };
      }
      if (done && rest) throw new Error(rest);
      if (done) return;
    }
  };
  for (;;) {
    let broke = null;
    await once().catch((error) => { broke = error; });
    if (signal.aborted) return;
    let next = record ? { nobody: true } : null;
    if (!record && busy(broke)) next = { here: true };
    if (record) {
      const path = `/v1/remote/tasks?${new URLSearchParams({ namespace: alloc.Namespace, prefix: record.SlotName })}`;
      try {
        next = onward(await read(path, signal), record.SlotName, record.IncarnationID, at);
      } catch { /* Whoever can say is away as well: asked again. */ }
    }
    if (!next || (next.here && next.ended && !broke)) {
      if (broke) throw broke;
      return;
    }
    if (next.at) {
      at = next.at;
      // What is told now stays: it says where the output comes from.
      troubled = false;
      managed(`The task is managed by ${next.node} now.`, at);
      continue;
    }
    troubled = next.nobody || Boolean(broke);
    if (next.nobody) managed("The task is managed by no node at present; it runs on.", at);
    else if (broke) managed(`The output broke off (${broke.message}): trying again.`, at);
    await new Promise((done) => setTimeout(done, PAUSE_MS));
  }
}
