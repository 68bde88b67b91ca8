// Run: cargo xtask interop ui
import assert from "node:assert/strict";
import test from "node:test";
import { plain, span, unplaced } from "../web/lib/format.js";
import { lanes } from "../web/lib/lanes.js";
import { loads } from "../web/lib/loads.js";
import { jobHref, parse, slotHref, variableHref } from "../web/lib/routes.js";

test("addresses of Nomad's web UI lead to the same objects", () => {
  assert.deepEqual(parse("/ui/"), { page: "jobs" });
  assert.deepEqual(parse("/ui/jobs/run"), { page: "run" });
  assert.deepEqual(parse("/ui/jobs/web", "namespace=prod"), { page: "job", id: "web", namespace: "prod", tab: "" });
  for (const id of ["a/b", "a@b", "x y%", "<b>"]) {
    const found = parse(jobHref(id, "prod", "versions"));
    assert.deepEqual(found, { page: "job", id, namespace: "prod", tab: "versions" });
  }
  assert.equal(parse(slotHref("default/j.g[0]/t")).id, "default/j.g[0]/t");
  for (const path of [variableHref("nomad/jobs/a", "prod"), "/ui/variables/var/nomad/jobs/a@prod"]) {
    assert.deepEqual(parse(path), { page: "variable", id: "nomad/jobs/a", namespace: "prod" });
  }
  assert.deepEqual(parse("/ui/variables/path/nomad/jobs"), { page: "variables", id: "nomad/jobs" });
  assert.deepEqual(parse("/ui/administration/roles"), { page: "access", part: "roles" });
  assert.deepEqual(parse("/ui/administration/policies/a%2Fb"), { page: "accessOf", part: "policies", id: "a/b" });
  assert.equal(parse("/ui/nonsense").page, "missing");
});

test("a name cannot hide what it is", () => {
  assert.equal(plain("a\u202eb\u0000"), "a\\u{202e}b\\u{0}");
  assert.equal(plain("zwölf <b>"), "zwölf <b>");
});

test("spans and reasons", () => {
  assert.deepEqual([span(900), span(61000), span(90000000)], ["1 s", "1 min 1 s", "1 d 1 h"]);
  assert.match(unplaced({ QuotaExhausted: ["cpu of namespace dev: 9 of 9 MHz in use"] }).join(), /limit reached: cpu of/);
  assert.match(unplaced({ NodesEvaluated: 2, DimensionExhausted: { cpu: 2 } }).join(), /2 without enough cpu/);
  const left = [{ Name: "a", Reason: "cpu" }, { Name: "b", Reason: "memory" }];
  const full = { DimensionExhausted: { cpu: 3 }, NodesLeftOut: left };
  assert.match(unplaced(full).join(), /3 without enough cpu \(a …\)/);
  assert.match(unplaced({}).join(), /no node is ready/);
});

test("a killed manager is a gap and a new lane", () => {
  const at = (s, Epoch, Message) => ({ Time: s * 1e9, Epoch, Message });
  const task = { StartedAt: 10e9, History: [at(9, 1, "committed"), at(20, 1, "unmanaged: lost"), at(22, 2, "adopted")] };
  const all = lanes(task, 30000);
  assert.deepEqual(all.lanes.map((l) => [l.epoch, l.from, l.to]), [[1, 10000, 20000], [2, 22000, 30000]]);
  assert.deepEqual(all.gaps, [{ from: 20000, to: 22000 }]);
});

test("a diff is told line by line", async () => {
  const { lines } = await import("../web/lib/diff.js");
  const told = (diff) => lines(diff).map((l) =>
    `${l.mark}${" ".repeat(l.depth)}${l.name}${l.text && `: ${l.text}`}${l.note && ` (${l.note})`}`);
  assert.deepEqual(told(null), []);
  assert.deepEqual(told({ Type: "None" }), []);
  assert.deepEqual(told({ Type: "Edited", Fields: [{ Type: "None", Name: "Same", Old: "1", New: "1" },
    { Type: "Edited", Name: "Priority", Old: "50", New: "60" }], TaskGroups: [{ Type: "Edited", Name: "g",
    Fields: [{ Type: "Added", Name: "Count", New: "2", Annotations: ["forces create"] }],
    Tasks: [{ Type: "Deleted", Name: "t", Objects: [{ Type: "Deleted", Name: "Config",
      Fields: [{ Type: "Deleted", Name: "command", Old: "/bin/true" }] }] }] }] }),
  ["~job", "~ Priority: 50 → 60", "~ group g", "+  Count: 2 (forces create)", "-  task t", "-   Config",
    "-    command: /bin/true"]);
});

test("what allocations take is counted on their nodes, the fullest first", () => {
  const node = (ID, mhz, mib) => ({ ID, Name: ID, Status: "ready", NodeResources: { Cpu: { CpuShares: mhz },
    Memory: { MemoryMB: mib } }, ReservedResources: { Cpu: { CpuShares: 100 }, Memory: { MemoryMB: 0 } } });
  const alloc = (NodeID, JobID, ClientStatus, DesiredStatus = "run") => ({ NodeID, JobID, Namespace: "default",
    ClientStatus, DesiredStatus, AllocatedResources: { Tasks: { t: { Cpu: { CpuShares: 50 }, Memory: { MemoryMB: 10 } },
      u: { Cpu: { CpuShares: 5 }, Memory: { MemoryMB: 1 } } } } });
  const found = loads([node("a", 1100, 1000), node("b", 1100, 1000)], [alloc("b", "x", "running"),
    alloc("b", "x", "pending"), alloc("b", "y", "running", "stop"), alloc("b", "x", "complete"),
    alloc("b", "x", "pending", "stop")]);
  assert.deepEqual(found.map((n) => [n.id, n.cpu, n.cpuTotal, n.memory, n.memoryTotal]), [["b", 165, 1000, 33, 1000],
    ["a", 0, 1000, 0, 1000]]);
  assert.deepEqual(found[0].jobs, [["x", "default", 2], ["y", "default", 1]]);
});
