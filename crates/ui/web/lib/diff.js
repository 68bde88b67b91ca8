// What differs between two versions of a job, line by line, as the server's diff says it. Pure.

const MARK = { Added: "+", Deleted: "-", Edited: "~" };

const field = (f, depth) => ({ depth, kind: f.Type, name: f.Name, text: f.Type === "Edited" ? `${f.Old} → ${f.New}`
  : f.Type === "Deleted" ? f.Old : f.New, note: (f.Annotations ?? []).join(", ") });

function block(b, title, depth, out) {
  if (b.Type === "None") return;
  out.push({ depth, kind: b.Type, name: title, text: "", note: (b.Annotations ?? []).join(", ") });
  (b.Fields ?? []).filter((f) => f.Type !== "None").forEach((f) => out.push(field(f, depth + 1)));
  (b.Objects ?? []).forEach((o) => block(o, o.Name, depth + 1, out));
  (b.TaskGroups ?? []).forEach((g) => block(g, `group ${g.Name}`, depth + 1, out));
  (b.Tasks ?? []).forEach((t) => block(t, `task ${t.Name}`, depth + 1, out));
}

/** `[{depth, kind, mark, name, text, note}]`; empty when nothing differs. */
export function lines(diff) {
  const out = [];
  if (diff) block(diff, "job", 0, out);
  return out.map((line) => ({ ...line, mark: MARK[line.kind] ?? " " }));
}

/** Whether all that a version has changed is that the job was stopped or started. */
export function onlyStops(diff) {
  const all = diff ? lines(diff).filter((line) => line.depth > 0) : [];
  return all.length > 0 && all.every((line) => line.name === "Stop");
}
