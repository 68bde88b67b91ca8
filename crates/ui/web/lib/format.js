// Values as people read them. Pure: the time of day is an argument.

/** Control and bidirectional characters made visible, so that a name cannot hide what it is. */
export function plain(text) {
  return String(text ?? "").replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/g,
    (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

/** A span in milliseconds in its two largest units. */
export function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** A span in milliseconds that may be short. */
export const shortly = (ms) => (ms < 10_000 ? `${(Math.max(0, ms) / 1000).toFixed(1)} s` : span(ms));

/** How long ago a time in Unix nanoseconds is; empty for none. */
export function ago(ns, nowMs) {
  return ns > 0 ? span(nowMs - ns / 1e6) : "";
}

/** A time in Unix nanoseconds as date and time of day, in the browser's time zone or the one of that name. */
export function moment(ns, zone) {
  if (!(ns > 0)) return "";
  const two = "2-digit";
  return new Date(ns / 1e6).toLocaleString("sv-SE", { timeZone: zone === "local" ? undefined : zone, year: "numeric",
    month: two, day: two, hour: two, minute: two, second: two, timeZoneName: "short" });
}

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i += 1; }
  return `${i === 0 ? n : n.toFixed(1)} ${units[i]}`;
}

/** Word, mark and class of a state: a colour never says anything alone. */
export function state(word) {
  const w = String(word ?? "").toLowerCase();
  const kind = { running: "good", ready: "good", complete: "idle", successful: "good", eligible: "good", healthy: "good",
    dead: "idle", stopped: "idle", exited: "idle", failed: "bad", lost: "bad", down: "bad", unmanaged: "warn",
    unknown: "warn", pending: "warn", blocked: "warn", ineligible: "warn", draining: "warn", held: "warn",
    disconnected: "warn", initializing: "warn", cancelled: "idle", canceled: "idle", paused: "warn",
    unavailable: "warn" }[w] ?? "idle";
  return { word: w || "–", kind, mark: { good: "●", bad: "✕", warn: "▲", idle: "○" }[kind] };
}

/** Why a group was not placed: one sentence for each step of the scheduler's choice. */
export function unplaced(metric) {
  const m = metric ?? {};
  const was = (n = 0, what = "") => `${n}${what && ` ${what}${n === 1 ? "" : "s"}`} ${n === 1 ? "was" : "were"}`;
  const out = [`${was(m.NodesEvaluated, "node")} looked at, ${was(m.NodesFiltered)} filtered, ` +
    `${m.NodesExhausted ?? 0} had no room`];
  const each = (map, say) => Object.entries(map ?? {}).forEach(([what, n]) => out.push(say(what, n)));
  if ((m.NodesEvaluated ?? 0) === 0) out.push("no node is ready in the job's pool and datacenters");
  // A few nodes by name, for each reason.
  const named = (what, n) => {
    const names = (m.NodesLeftOut ?? []).filter((node) => node.Reason === what).map((node) => node.Name);
    return names.length ? ` (${names.join(", ")}${n > names.length ? " …" : ""})` : "";
  };
  each(m.ConstraintFiltered, (what, n) => `${n} filtered by ${what}${named(what, n)}`);
  each(m.ClassFiltered, (what, n) => `${n} of class ${what} filtered`);
  each(m.DimensionExhausted, (what, n) => `${n} without enough ${what}${named(what, n)}`);
  (m.QuotaExhausted ?? []).forEach((limit) => out.push(`limit reached: ${limit}`));
  if (m.CoalescedFailures > 0) out.push(`${m.CoalescedFailures} more allocations fail for the same reason`);
  return out;
}

/** What would help a group that was not placed, by the scheduler's reasons; empty where it has none. */
export function unblocks(metric) {
  const m = metric ?? {};
  const keys = (map) => Object.keys(map ?? {});
  const node = (why) => (why.startsWith("missing ") ? `a node with ${why.slice(8)}` :
    why.startsWith("${") ? `a node where ${why}` : `a node that ${why} does not leave out`);
  const out = [...(m.NodesEvaluated ? [] : ["a ready node in the job's pool and datacenters"]),
    ...keys(m.ConstraintFiltered).map(node),
    ...keys(m.DimensionExhausted).map((what) => `more ${what} on a node, or a job that asks for less`),
    ...(m.QuotaExhausted?.length ? ["a higher limit of the namespace, or fewer allocations in it"] : [])];
  return out.length ? `What would help: ${out.join("; ")}. The servers try again by themselves.` : "";
}

/** The words that somebody has typed into one field, by blanks or commas. */
export const words = (text) => text.split(/[\s,]+/).filter(Boolean);
