// Run: cargo xtask interop ui
import assert from "node:assert/strict";
import test from "node:test";
import { allocWords, newestFirst, talking } from "../web/lib/allocs.js";
import { bare, coloured, filterOf, styleAfter } from "../web/lib/ansi.js";
import { each } from "../web/lib/bulk.js";
import { ceiling, chart, HIGH, WIDE } from "../web/lib/chart.js";
import { doubles, orphans } from "../web/lib/doubles.js";
import { onlyStops } from "../web/lib/diff.js";
import { backlog, evalWords } from "../web/lib/evals.js";
import { frames, onward } from "../web/lib/frames.js";
import { all, choosing, letterOf, meant } from "../web/lib/letters.js";
import { EMPTY, grown, whole } from "../web/lib/logtext.js";
import { scores } from "../web/lib/scores.js";
import { nodesOf, places, SHOWN, verdict } from "../web/lib/slots.js";
import { taskLanes } from "../web/lib/tasklanes.js";
import { devices } from "../web/lib/devices.js";
import { moment, plain, shortly, span, unblocks, unplaced } from "../web/lib/format.js";
import { meaning, rowOf } from "../web/lib/keys.js";
import { lanes, ledSince } from "../web/lib/lanes.js";
import { byDatacenter, loads, providers, room } from "../web/lib/loads.js";
import { matches } from "../web/lib/matches.js";
import { variablesOf } from "../web/lib/variables.js";
import { waitsFor, waterfall } from "../web/lib/waterfall.js";
import { editHref, execHref, filesHref, jobHref, parse, slotHref, up, variableHref, volumeHref } from "../web/lib/routes.js";

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
  for (const path of [volumeHref("v1", "prod"), "/ui/storage/volumes/dynamic/v1@prod", "/ui/storage/volumes/v1@prod"]) {
    assert.deepEqual(parse(path), { page: "volume", id: "v1", namespace: "prod" });
  }
  assert.deepEqual(parse("/ui/storage/volumes"), { page: "volumes" });
  assert.deepEqual(parse("/ui/variables/path/nomad/jobs"), { page: "variables", id: "nomad/jobs" });
  assert.deepEqual(parse("/ui/allocations/a1/fs"), { page: "files", id: "a1", path: "/" });
  assert.deepEqual(parse("/ui/allocations/a1/web/fs/local"), { page: "files", id: "a1", path: "/web/local" });
  assert.deepEqual(parse(filesHref("a1", "/t/a b%/c")), { page: "files", id: "a1", path: "/t/a b%/c" });
  const [path, query] = execHref({ JobID: "a/b", Namespace: "prod", TaskGroup: "g", ID: "0123456789" }, "t").split("?");
  assert.deepEqual(parse(path, query),
    { page: "exec", id: "a/b", namespace: "prod", group: "g", task: "t", alloc: "01234567" });
  assert.deepEqual(parse("/ui/administration/roles"), { page: "access", part: "roles" });
  assert.deepEqual(parse("/ui/administration/policies/a%2Fb"), { page: "accessOf", part: "policies", id: "a/b" });
  assert.deepEqual(parse("/ui/clients/n1/monitor"), { page: "monitor", part: "node", id: "n1" });
  assert.deepEqual(parse("/ui/servers/one.global/monitor"), { page: "monitor", part: "server", id: "one.global" });
  assert.deepEqual(parse("/ui/evaluations", "currentEval=e1"), { page: "evaluations", id: "e1" });
  assert.equal(parse("/ui/jobs/web@prod/g").tab, "g");
  assert.equal(parse("/ui/nonsense").page, "missing");
});

test("a name cannot hide what it is", () => {
  assert.equal(plain("a\u202eb\u0000"), "a\\u{202e}b\\u{0}");
  assert.equal(plain("zwölf <b>"), "zwölf <b>");
});

test("spans and reasons", () => {
  assert.deepEqual([shortly(640), shortly(61000), shortly(-1)], ["0.6 s", "1 min 1 s", "0.0 s"]);
  assert.deepEqual([span(900), span(61000), span(90000000)], ["1 s", "1 min 1 s", "1 d 1 h"]);
  assert.match(unplaced({ QuotaExhausted: ["cpu of namespace dev: 9 of 9 MHz in use"] }).join(), /limit reached: cpu of/);
  assert.match(unplaced({ NodesEvaluated: 2, DimensionExhausted: { cpu: 2 } }).join(), /2 without enough cpu/);
  const left = [{ Name: "a", Reason: "cpu" }, { Name: "b", Reason: "memory" }];
  const full = { DimensionExhausted: { cpu: 3 }, NodesLeftOut: left };
  assert.match(unplaced(full).join(), /3 without enough cpu \(a …\)/);
  assert.match(unplaced({}).join(), /^0 nodes were looked at, 0 were filtered, 0 had no room,no node is ready/);
  assert.match(unplaced({ NodesEvaluated: 1, NodesFiltered: 1 })[0], /^1 node was looked at, 1 was filtered, 0 had/);
});

test("an order for many allocations is carried out for each, and says when it was not", async () => {
  const done = [];
  await each([1, 2, 3, 4, 5, 6], async (a) => { done.push(a); });
  assert.deepEqual(done.sort(), [1, 2, 3, 4, 5, 6]);
  const odd = async (a) => { if (a % 2) throw new Error(`${a} is odd`); };
  await assert.rejects(each([1, 2, 3], odd), /^Error: 2 of 3: 1 is odd$/);
  await assert.rejects(each([], odd), /knows of no running allocation/);
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

test("output keeps its colours and nothing else that it says to a terminal", () => {
  assert.deepEqual(coloured("plain"), [{ text: "plain", name: "" }]);
  assert.deepEqual(coloured("\x1b[1;31mbad\x1b[0m ok"),
    [{ text: "bad", name: "ansi-red ansi-bold" }, { text: " ok", name: "" }]);
  // Cursor movements, window titles and links go; numbers of large palettes are no codes of their own.
  assert.deepEqual(coloured("\x1b[2Ja\x1b]0;title\x07b\x1b[38;5;31mc"), [{ text: "abc", name: "" }]);
  assert.equal(bare("\x1b[32mg\x1b[39mo"), "go");
});

test("a filter is a text or an expression", () => {
  assert.ok(filterOf("a.c").fits("xa.cx") && !filterOf("a.c").fits("abc"));
  assert.ok(filterOf("/a.c$/i").fits("xABC") && !filterOf("/a.c$/").fits("ABC"));
  const broken = filterOf("/(/");
  assert.ok(broken.wrong && broken.fits("everything"));
});

test("lines of a chart", () => {
  assert.deepEqual([0, 1, 1.2, 7, 60, 2000].map(ceiling), [1, 1, 2, 10, 100, 2000]);
  const points = [{ at: 0, values: [0, 10] }, { at: 10, values: [5, 10] }, { at: 100, values: [10, 10] }];
  const made = chart(points, 50);
  assert.equal(made.top, 10);
  // A gap breaks each line.
  assert.deepEqual(made.lines[0], [`0.0,${HIGH}.0 ${WIDE / 10}.0,${HIGH / 2}.0`, `${WIDE}.0,0.0`]);
  assert.deepEqual(chart([], 50).lines, []);
});

test("one field finds pages, tasks by their provider's name, and what the servers find", () => {
  const pages = [["jobs", "Jobs"], ["topology", "Topology"]];
  const tasks = [{ SlotName: "default/a.g[0]/t", ProviderId: "arn:aws:ecs:task/77" }];
  const servers = { jobs: [{ ID: "web", Scope: ["prod", "web"] }], nodes: [{ ID: "n1", Scope: ["0123456789"] }],
    allocs: [{ ID: "web.g[0]", Scope: ["prod", "abcdefgh-1"] }], images: [{ ID: "x", Scope: [] }] };
  assert.deepEqual(matches("", pages, tasks, {}).map((m) => m.name), ["Jobs", "Topology"]);
  const every = [["jobs", "Jobs"], ["clients", "Clients"], ["variables", "Variables"]];
  assert.deepEqual([":nodes", ":var", ":j"].map((text) => matches(text, every, tasks, {})[0].href),
    ["/ui/clients", "/ui/variables", "/ui/jobs"]);
  assert.deepEqual(matches("TASK/77", pages, tasks, {}).map((m) => m.href), [slotHref("default/a.g[0]/t")]);
  assert.deepEqual(matches("zz", pages, tasks, servers).map((m) => m.href),
    [jobHref("web", "prod"), "/ui/allocations/abcdefgh-1", "/ui/clients/0123456789"]);
});

test("datacenters are summed, and what fits is counted", () => {
  const node = (datacenter, takes, cpu, memory) =>
    ({ datacenter, takes, cpu, cpuTotal: 1000, memory, memoryTotal: 1000 });
  const nodes = [node("b", true, 400, 100), node("a", true, 0, 0), node("a", false, 0, 0), node("a", true, 100, 900)];
  assert.deepEqual(byDatacenter(nodes).map((d) => [d.name, d.nodes, d.cpu, d.cpuTotal, d.memory]),
    [["a", 2, 100, 2000, 900], ["b", 1, 400, 1000, 100]]);
  assert.deepEqual(nodes.map((n) => room(n, 300, 300)), [2, 3, 0, 0]);
  assert.deepEqual([room(nodes[0], 0, 300), room(nodes[0], 0, 0)], [3, 0]);
});

test("a deployment is told allocation by allocation, and what it waits for", () => {
  const rows = waterfall([
    { ID: "b", Name: "j.g[1]", CreateTime: 5e9, TaskStates: { t: { StartedAt: "1970-01-01T00:00:07Z" } } },
    { ID: "a", Name: "j.g[0]", CreateTime: 1e9, TaskStates: { t: { StartedAt: "1970-01-01T00:00:02Z" },
      u: { StartedAt: "1970-01-01T00:00:03Z" } }, DeploymentStatus: { Healthy: true, Canary: true,
      Timestamp: "1970-01-01T00:00:04Z" } }]);
  assert.deepEqual(rows.map((r) => [r.id, r.placed, r.started, r.judged, r.healthy, r.canary]),
    [["a", 1000, 3000, 4000, true, true], ["b", 5000, 7000, 0, null, false]]);
  const group = (more) => ({ Status: "running", TaskGroups: { g: { DesiredTotal: 3, DesiredCanaries: 0, PlacedAllocs: 3,
    HealthyAllocs: 1, ...more } } });
  assert.equal(waitsFor(group({})), "g: 2 of 3 are not healthy yet");
  assert.equal(waitsFor(group({ PlacedAllocs: 1 })), "g: 2 of 3 are not placed");
  assert.equal(waitsFor(group({ DesiredCanaries: 1, PlacedAllocs: 1 })), "waits for somebody who promotes g");
  assert.equal(waitsFor(group({ DesiredCanaries: 2, PlacedAllocs: 2 })), "g: 1 of 2 is not healthy yet");
  assert.equal(waitsFor({ ...group({}), Status: "successful" }), "");
});

test("a device is shown with the allocation that has it, until its tasks have ended", () => {
  const node = { NodeResources: { Devices: [{ Vendor: "v", Type: "gpu", Name: "n",
    Instances: [{ ID: "a", Healthy: true }, { ID: "b", Healthy: false, HealthDescription: "hot" }] }] } };
  const given = (id, status) => ({ ID: id, ClientStatus: status, AllocatedResources: { Tasks: {
    t: { Devices: [{ Vendor: "v", Type: "gpu", Name: "n", DeviceIDs: ["a"] }] } } } });
  const of = (allocs) => devices(node, allocs).map((d) => [d.id, d.healthy, d.why, d.alloc?.ID]);
  assert.deepEqual(of([given("1", "complete"), given("2", "running")]),
    [["a", true, undefined, "2"], ["b", false, "hot", undefined]]);
  assert.deepEqual(of([given("1", "failed")])[0], ["a", true, undefined, undefined]);
  assert.deepEqual(devices({}, []), []);
});

test("keys mean what Nomad's mean, and what this page has", () => {
  const pages = [["jobs", "Jobs", "j"], ["settings/tokens", "Log in", "p"], ["other", "No key", ""]];
  const of = (before, key, shift = false, here = []) => meaning(before, key, shift, pages, here);
  assert.deepEqual(of("g", "j"), { go: "/ui/jobs" });
  assert.deepEqual([of("g", "k"), of("", "g"), of("g", "")], [null, null, null]);
  assert.deepEqual([of("", "j"), of("", "k"), of("", "u")], [{ step: 1 }, { step: -1 }, { up: true }]);
  assert.deepEqual([of("", "/"), of("", "?", true)], [{ find: true }, { help: true }]);
  assert.deepEqual([of("", "w", false, ["ww"]), of("w", "w", false, ["ww"])], [null, { press: "ww" }]);
  assert.deepEqual([of("", "x", false, ["x"]), of("", "x"), of("g", "x", false, ["x"])], [{ press: "x" }, null, null]);
  assert.deepEqual([of("", "ArrowLeft", true), of("", "ArrowDown", true)], [{ tab: -1 }, { page: 1 }]);
  assert.equal(of("", "ArrowLeft"), null);
});

test("each page has one above it, or knows it itself", () => {
  assert.equal(up(parse("/ui/jobs/a@b/versions")), "/ui/jobs/a%40b");
  assert.equal(up(parse("/ui/jobs/a@b")), "/ui/jobs");
  assert.equal(up(parse("/ui/allocations/a1/fs/x")), "/ui/allocations/a1");
  assert.equal(up(parse("/ui/administration/roles/r")), "/ui/administration/roles");
  assert.equal(up(parse("/ui/jobs")), null);
  const [path, query] = editHref("a/b", "prod").split("?");
  assert.deepEqual(parse(path, query), { page: "run", id: "a/b", namespace: "prod" });
});

test("a time is told in the zone that was chosen", () => {
  assert.equal(moment(1795743005e9, "UTC"), "2026-11-27 01:30:05 UTC");
  assert.equal(moment(0, "UTC"), "");
});

test("variables of files and flags are one text, in which a flag takes the place of a line", () => {
  const flags = { image: 'web:"2"', ports: "[80, 81]", text: "${x}" };
  const text = variablesOf({ Variables: "image = \"web:1\"\nn = 3\n", VariableFlags: flags });
  assert.equal(text, 'n = 3\n\nimage = "web:\\"2\\""\nports = [80, 81]\ntext = "$${x}"');
  const heredoc = "t = <<E\nimage = 1\nE";
  assert.equal(variablesOf({ Variables: heredoc, VariableFlags: { image: "2" } }), `${heredoc}\nimage = "2"`);
  assert.equal(variablesOf({}), "");
});

test("a job's log is that of what runs, else of what came last", () => {
  const job = { TaskGroups: [{ Name: "g", Tasks: [{ Name: "main" }, { Name: "side" }] }, { Name: "h", Tasks: [] }] };
  const alloc = (ID, CreateIndex, ClientStatus, TaskGroup = "g") => ({ ID, CreateIndex, ClientStatus, TaskGroup });
  const all = [alloc("a", 1, "running"), alloc("b", 3, "failed"), alloc("c", 9, "pending")];
  assert.deepEqual(talking(job, all), { id: "a", task: "main" });
  assert.deepEqual(talking(job, all.slice(1)), { id: "b", task: "main" });
  assert.equal(talking(job, all.slice(2)), undefined);
  assert.equal(talking(job, [alloc("d", 1, "running", "h")]), undefined);
  assert.deepEqual(newestFirst(all).map((a) => a.ID), ["c", "b", "a"]);
  assert.match(allocWords({ ...all[0], Name: "J.g[0]", NodeName: "N", JobVersion: 2 }), /^a j\.g\[0\] running n 2$/);
});

test("an instance that no record knows is a double only beside a live one of its slot", () => {
  const instance = (Key, Slot, State) => ({ Key, Slot, Observed: { State } });
  const sweeps = [{ Driver: "d", Provider: "p", Unbound: [instance("k1", "s1", "Running"), instance("k2", "s2", "Running"),
    instance("k3", "s1", "Exited"), instance("k4", "s3", "Running")] }];
  const tasks = [{ SlotName: "s1", Observed: { State: "Running" } }, { SlotName: "s2", Observed: { State: "Gone" } }];
  const all = orphans(sweeps, tasks);
  assert.deepEqual(all.map((i) => [i.Key, i.Driver, i.record?.SlotName]),
    [["k1", "d", "s1"], ["k2", "d", "s2"], ["k3", "d", "s1"], ["k4", "d", undefined]]);
  assert.deepEqual(doubles(all).map((i) => i.Key), ["k1"]);
});

test("frames of a stream are taken one after the other, whatever is in them", () => {
  const two = `{"Data":"YQ==","File":"a}\\"b{","Offset":1}{}{"Data":"Yg==","Offset":2}`;
  const all = JSON.parse(`[${two.replaceAll("}{", "},{")}]`);
  assert.deepEqual(frames(two), { frames: all, rest: "" });
  // However it is cut, the same comes out.
  for (let cut = 0; cut <= two.length; cut += 1) {
    const first = frames(two.slice(0, cut));
    const second = frames(first.rest + two.slice(cut));
    assert.deepEqual([...first.frames, ...second.frames], all, `cut at ${cut}`);
  }
  assert.deepEqual(frames(`{}the task went on elsewhere {`), { frames: [{}], rest: "the task went on elsewhere {" });
});

test("the output of a remote task is read on where its instance is managed", () => {
  const record = (more) => [{ SlotName: "s", IncarnationID: "i", Observed: { State: "Running" }, ...more }];
  const managed = { Manager: { AllocID: "a2" }, ManagerName: "n2" };
  assert.deepEqual(onward(record(managed), "s", "i", "a1"), { at: "a2", node: "n2" });
  assert.deepEqual(onward(record(managed), "s", "i", "a2"), { here: true, ended: false });
  const nobodys = record({ Manager: { AllocID: "00000000-0000" } });
  assert.deepEqual(onward(nobodys, "s", "i", "a1"), { here: true, ended: false });
  assert.deepEqual(onward(record({}), "s", "i", "a1"), { nobody: true });
  assert.equal(onward(record({ Observed: { State: "Exited" } }), "s", "i", "a1"), null);
  assert.equal(onward(record(managed), "s", "another instance", "a1"), null);
});

test("letters can be others", () => {
  const pages = [["jobs", "Jobs", "j"], ["clients", "Clients", "c"]];
  const next = choosing({}, "j", "n", pages).chosen;
  assert.deepEqual(next, { j: "n" });
  assert.deepEqual([meant(next, false, "n"), meant(next, false, "j"), meant(next, false, "k")], ["j", "", "k"]);
  // Letters of pages come after another one, and are apart.
  assert.deepEqual([meant(next, true, "j"), meant(next, true, "n")], ["j", "n"]);
  const page = choosing(next, "g c", "n", pages).chosen;
  assert.deepEqual([meant(page, true, "n"), meant(page, true, "c"), letterOf(page, "g c")], ["c", "", "n"]);
  assert.match(choosing(next, "k", "n", pages).wrong, /n means "Next row"/);
  assert.match(choosing({}, "k", "j", pages).wrong, /j means "Next row"/);
  assert.match(choosing({}, "k", "ab", pages).wrong, /one letter/);
  // What somebody has given away comes back only when it is free.
  const given = choosing(next, "k", "j", pages).chosen;
  assert.match(choosing(given, "j", "", pages).wrong, /j means "Previous row"/);
  assert.deepEqual(choosing(next, "j", "", pages).chosen, {});
  assert.ok(all(pages).some(([id]) => id === "g c"));
});

test("two digits with Shift open a row", () => {
  assert.deepEqual(rowOf("", "Digit0", true), { begun: "row 0" });
  assert.deepEqual(rowOf("row 1", "Digit2", true), { open: 12 });
  assert.deepEqual([rowOf("", "Digit0", false), rowOf("", "KeyA", true)], [null, null]);
});

test("the places of a job, and how it is in a sentence", () => {
  const alloc = (index, status, create, more) => ({ ID: `a${create}`, Name: `web.g[${index}]`, TaskGroup: "g",
    NodeID: "n1", NodeName: "one", ClientStatus: status, CreateIndex: create, ...more });
  const tried = (n) => ({ RescheduleTracker: { Events: Array(n - 1).fill({}) } });
  const group = { Name: "g", Count: 3 };
  const job = { ID: "web", Type: "service", Status: "running", TaskGroups: [group] };
  // An allocation of an earlier version is no attempt: attempts are counted by who reschedules.
  const failed = [alloc(0, "complete", 1), alloc(0, "running", 2),
    alloc(1, "failed", 3, { ClientDescription: "Failed tasks", ...tried(2) })];
  const { cells, left } = places(job, group, failed);
  assert.deepEqual(cells.map((c) => [c.name, c.word, c.attempts]),
    [["g[0]", "running", 1], ["g[1]", "failed", 2], ["g[2]", "not placed", 1]]);
  assert.equal(left, 0);
  assert.deepEqual(verdict(job, failed, []), ["bad", "g[1] is failed, at attempt 2: Failed tasks."]);
  const metric = { NodesEvaluated: 1, DimensionExhausted: { memory: 1 } };
  const blocked = { Status: "blocked", FailedTGAllocs: { g: metric } };
  assert.match(verdict(job, failed, [blocked])[1], /^Not everything of g is placed: 1 node was looked at.*memory/);
  const well = [0, 1, 2].map((n) => alloc(n, "running", n + 1));
  assert.deepEqual(verdict(job, well, []), ["good", "All is well: 3 allocations run."]);
  assert.equal(verdict({ ...job, RemoteTasks: [{ Unmanaged: true }] }, well, [])[0], "warn");
  assert.deepEqual(verdict(job, well.slice(0, 2), []), ["warn", "1 allocation does not run yet."]);
  assert.deepEqual(verdict({ ...job, TaskGroups: [] }, [], []), ["good", "It wants no allocation."]);
  // What has ended, or makes others, wants no places any more.
  const ended = { ...job, Status: "dead", Type: "batch" };
  assert.deepEqual(places(ended, group, failed.slice(0, 1)).cells.map((c) => c.word), ["complete"]);
  assert.deepEqual(verdict(ended, failed.slice(0, 1), []), ["idle", "It has run to its end."]);
  assert.deepEqual(places({ ...job, Periodic: {} }, group, []).cells, []);
  assert.equal(verdict({ ...job, Stop: true }, well, [])[1], "It is stopped.");
  // A system job has the same name on each node.
  const system = { ...job, Type: "system", TaskGroups: [{ Name: "g", Count: 1 }] };
  const on = (node, status, create) => alloc(0, status, create, { NodeID: node, NodeName: node });
  const both = [on("n1", "failed", 1), on("n2", "running", 2)];
  assert.deepEqual(places(system, system.TaskGroups[0], both).cells.map((c) => [c.name, c.word]),
    [["g on n1", "failed"], ["g on n2", "running"]]);
  assert.deepEqual(verdict(system, both, []), ["bad", "g on n1 is failed."]);
  // Of many places those are shown that are not as they should be.
  const many = Array.from({ length: 5000 }, (_, n) => alloc(n, n === 4000 ? "failed" : "running", n));
  const large = places(job, { Name: "g", Count: 5000 }, many);
  assert.ok(large.cells.length === 1 && large.left === 4999 && SHOWN < 5000);
  assert.deepEqual(nodesOf(failed), [{ id: "n1", name: "one", states: { complete: 1, failed: 1, running: 1 } }]);
});

test("what tasks did lies on one axis", () => {
  const at = (s) => s * 1e9;
  const states = { t: { StartedAt: "1970-01-01T00:00:02Z", Events: [{ Time: at(1), Type: "Received" },
    { Time: at(2), Type: "Started" }, { Time: at(5), Type: "Terminated", DisplayMessage: "exit code 1" },
    { Time: at(6), Type: "Restarting" }, { Time: at(7), Type: "Started" }] } };
  const { from, to, lanes: [lane] } = taskLanes(states, 9000);
  assert.deepEqual([from, to], [1000, 9000]);
  assert.deepEqual(lane.spans.map((s) => [s.from, s.to, s.ends?.words ?? null]),
    [[2000, 5000, "exit code 1"], [7000, 9000, null]]);
  assert.equal(lane.ticks.length, 5);
  assert.deepEqual(taskLanes({}, 9000), { from: 9000, to: 9000, lanes: [] });
});

test("versions that only stop or start are told", () => {
  const edited = (name) => ({ Type: "Edited", Fields: [{ Type: "Edited", Name: name, Old: "a", New: "b" }] });
  assert.deepEqual([edited("Stop"), edited("Priority"), null, { Type: "None" }].map(onlyStops),
    [true, false, false, false]);
});

test("the backlog of evaluations by state and trigger", () => {
  const evals = [{ ID: "e", Status: "blocked", TriggeredBy: "queued-allocs", JobID: "j", NodeID: "" },
    { ID: "f", Status: "complete", TriggeredBy: "job-register", JobID: "j", NodeID: "" }];
  assert.deepEqual(backlog(evals), [["blocked", 1, "warn"], ["complete", 1, ""], ["queued-allocs", 1, ""]]);
  assert.ok(evalWords(evals[0]).includes("queued-allocs"));
});

test("scores of nodes, the best first", () => {
  const metrics = { NodesEvaluated: 2, ScoreMetaData: [
    { NodeID: "a", NormScore: 0.25, Scores: { binpack: 0.25, "normalized-score": 0.25 } },
    { NodeID: "b", NormScore: 0.5, Scores: { binpack: 0.5 } }] };
  const { parts, rows } = scores(metrics);
  assert.deepEqual([parts, rows.map((r) => [r.id, r.score, r.parts])],
    [["binpack"], [["b", "0.5", { binpack: "0.5" }], ["a", "0.25", { binpack: "0.25" }]]]);
  assert.deepEqual(scores(undefined).rows, []);
});

test("remote runtimes, and ports that are free", () => {
  const node = { ID: "n", Name: "one", Status: "ready", SchedulingEligibility: "eligible", Drivers: {
    ssh: { Healthy: true, Remote: { Provider: "p", PoolCPU: 10, PoolMemoryMB: 20 } }, raw_exec: { Healthy: true } },
  NodeResources: { Cpu: { CpuShares: 100 }, Memory: { MemoryMB: 100 } } };
  const tasks = [{ Driver: "ssh", Provider: "p", Unmanaged: true }, { Driver: "ecs", Provider: "q" }, { Provider: "" }];
  assert.deepEqual(providers([node], tasks), [
    { driver: "ecs", name: "q", nodes: [], tasks: 1, unmanaged: 0, cpu: 0, memory: 0 },
    { driver: "ssh", name: "p", nodes: ["one"], tasks: 1, unmanaged: 1, cpu: 10, memory: 20 }]);
  const alloc = { NodeID: "n", JobID: "j", Namespace: "default", ClientStatus: "running", DesiredStatus: "run",
    AllocatedResources: { Tasks: {}, Shared: { Ports: [{ Value: 8080 }] } } };
  const [load] = loads([node], [alloc]);
  assert.deepEqual([[10, 0], [10, 0, 8080], [10, 0, 8081], [0, 0, 8081]].map((asked) => room(load, ...asked)),
    [10, 0, 1, 1]);
});

test("a log grows at its end and is cut at its beginning, and what stays is the same object", () => {
  const lines = (from, to) => Array.from({ length: to - from }, (_, i) => `line ${from + i}\n`).join("");
  let [log, dropped, all] = [EMPTY, 0, ""];
  for (let n = 0; n < 60; n += 1) {
    const more = lines(n * 100, n * 100 + 100);
    const before = log.blocks;
    const next = grown(log, more, 20_000);
    [log, dropped, all] = [next.log, dropped + next.dropped, all + more];
    assert.equal(whole(log), all.slice(dropped), `after ${n}`);
    assert.ok(log.size === whole(log).length && log.size <= 20_000 + 8_000);
    const same = log.blocks.filter((block) => before.includes(block)).length;
    assert.ok(same >= before.length - 2, "all but the last and a dropped one");
  }
  assert.ok(dropped > 0 && log.blocks.slice(0, -1).every((block) => block.text.endsWith("\n")));
  // More than is kept at once; a line without an end.
  const huge = grown(log, "x".repeat(50_000), 20_000);
  assert.equal(whole(huge.log), "x".repeat(20_000));
  assert.equal(huge.dropped, log.size + 30_000);
  // A colour goes on in the next block.
  const red = grown(EMPTY, `\x1b[31m${`${"z".repeat(99)}\n`.repeat(200)}`, 1e6).log;
  assert.ok(red.blocks.length > 1);
  for (const block of red.blocks) assert.equal(coloured(block.text, block.style)[0].name, "ansi-red");
  assert.deepEqual(styleAfter("\x1b[1;32mgo"), { colour: "green", bold: true });
});

test("what would help a group that is not placed, and since when servers are led", () => {
  const filtered = { "${node.class} = large": 1, "missing drivers": 1, distinct_hosts: 1 };
  assert.equal(unblocks({ NodesEvaluated: 1, ConstraintFiltered: filtered, DimensionExhausted: { memory: 1 } }),
    "What would help: a node where ${node.class} = large; a node with drivers; a node that distinct_hosts does not " +
    "leave out; more memory on a node, or a job that asks for less. The servers try again by themselves.");
  assert.match(unblocks({}), /^What would help: a ready node/);
  assert.equal(unblocks({ NodesEvaluated: 1 }), "");
  assert.deepEqual([ledSince([]), ledSince([{ Time: 5e9 }]), ledSince(Array(360).fill({ Time: 5e9 }))], [0, 5000, 0]);
});

test("a stream that an agent does not even open is silent, and then open", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  globalThis.navigator ??= {};
  globalThis.sessionStorage ??= { getItem: () => null };
  let answer;
  t.mock.method(globalThis, "fetch", () => new Promise((done) => { answer = done; }));
  const { listen } = await import("../web/lib/stream.js");
  const heard = [];
  const end = listen((_, state) => heard.push(state));
  t.mock.timers.tick(34_999);
  assert.deepEqual(heard, []);
  t.mock.timers.tick(1);
  assert.deepEqual(heard, ["silent"]);
  answer(new Response(new ReadableStream()));
  for (let n = 0; n < 9; n += 1) await Promise.resolve();
  assert.deepEqual(heard, ["silent", "open"]);
  end();
  // The channel of the tabs would keep this process.
  t.mock.timers.tick(2_000);
});

test("a page goes on saying which node manages a task, also after a moment without one", async (t) => {
  globalThis.sessionStorage ??= { getItem: () => null };
  const frame = (text, end) => JSON.stringify({ Data: btoa(text), Offset: end });
  const record = (manager) => Response.json([{ SlotName: "default/j.g[0]/t", IncarnationID: "i", ...manager }]);
  const open = new ReadableStream({ start: (to) => to.enqueue(new TextEncoder().encode(frame("two", 6))) });
  const replies = [new Response(frame("one", 3)), record({}), new Response("node is lost", { status: 500 }),
    record({ Manager: { AllocID: "a2" }, ManagerName: "n2" }), new Response(open)];
  const asked = [];
  t.mock.method(globalThis, "fetch", async (path) => { asked.push(path); return replies.shift(); });
  const { follow } = await import("../web/lib/follow.js");
  const [stop, words] = [new AbortController(), []];
  const alloc = { ID: "a1", Namespace: "default", RemoteTasks: [{ SlotName: "default/j.g[0]/t", IncarnationID: "i" }] };
  const read = await new Promise((done) => {
    let all = "";
    const text = (part, at) => { all += `${at}:${part} `; if (part === "two") done(all); };
    const managed = (told) => words.push(told);
    follow({ alloc, task: "t", kind: "stdout", back: 50, signal: stop.signal, text, managed });
  });
  stop.abort();
  assert.equal(read, "0:one 3:two ");
  assert.match(asked.at(-1), /a2\?.*origin=start&offset=3$/);
  assert.deepEqual(words,
    ["The task is managed by no node at present; it runs on.", "The task is managed by n2 now."]);
});

/** Lets everything go on that waits for nothing but its turn. */
const turns = async () => { for (let n = 0; n < 30; n += 1) await Promise.resolve(); };

test("what an agent is too busy for is asked again after the wait that it asks for", async (t) => {
  globalThis.sessionStorage ??= { getItem: () => null };
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const busy = (status, seconds) => new Response("too busy",
    { status, headers: seconds ? { "Retry-After": seconds } : {} });
  let replies = [busy(429, "7"), busy(408), busy(429, "86400"), Response.json({ a: 1 })];
  let asked = 0;
  t.mock.method(globalThis, "fetch", async () => { asked += 1; return replies.shift() ?? busy(429); });
  const { read, write } = await import("../web/lib/api.js");
  const { signal } = new AbortController();
  const got = read("/v1/jobs", signal);
  for (const wait of [7000, 1000, 60_000]) {
    await turns();
    const before = asked;
    t.mock.timers.tick(wait - 1);
    await turns();
    assert.equal(asked, before, `asked before ${wait} ms`);
    t.mock.timers.tick(1);
  }
  assert.deepEqual(await got, { a: 1 });
  // What no page can end is not tried for ever: then the agent's own sentence is told.
  asked = 0;
  const refused = assert.rejects(write("/v1/jobs", {}), { status: 429, message: "too busy" });
  for (let n = 0; n < 9; n += 1) { await turns(); t.mock.timers.tick(1000); }
  await refused;
  assert.equal(asked, 4);
  // Nor is a page left without a word: it says so, and asks again itself.
  const { final } = await import("../web/lib/api.js");
  const told = assert.rejects(read("/v1/jobs", signal), (error) => error.status === 429 && !final(error));
  for (let n = 0; n < 9; n += 1) { await turns(); t.mock.timers.tick(1000); }
  await told;
  // A page that is left asks no more.
  asked = 0;
  const stop = new AbortController();
  const left = assert.rejects(read("/v1/jobs", stop.signal), { name: "AbortError" });
  await turns();
  stop.abort();
  await left;
  assert.equal(asked, 1);
  // Another refusal is the last word at once.
  replies = [new Response("no", { status: 403 })];
  await assert.rejects(read("/v1/jobs", signal), (error) => error.message === "no" && final(error));
});

test("the output of a task is followed on when the agent was too busy", async (t) => {
  globalThis.sessionStorage ??= { getItem: () => null };
  const frame = JSON.stringify({ Data: btoa("one"), Offset: 3 });
  // More often than one request is repeated.
  const busy = () => new Response("too busy", { status: 429, headers: { "Retry-After": "0.01" } });
  const replies = [...Array.from({ length: 5 }, busy), new Response(frame)];
  t.mock.method(globalThis, "fetch", async () => replies.shift());
  const { follow } = await import("../web/lib/follow.js");
  let read = "";
  const alloc = { ID: "a1", Namespace: "default" };
  await follow({ alloc, task: "t", kind: "stdout", back: 50, signal: new AbortController().signal,
    text: (part) => { read += part; }, managed: () => {} });
  assert.equal(read, "one");
});

test("a job that is changed stays in its namespace, unless its text names another", async (t) => {
  globalThis.sessionStorage ??= { getItem: () => null };
  const asked = [];
  let parsed = null;
  t.mock.method(globalThis, "fetch", async (path, { body }) => {
    asked.push([path, JSON.parse(body)]);
    return Response.json(path === "/v1/jobs/parse" ? parsed : { JobModifyIndex: 7 });
  });
  const { jobFrom, planOf, register } = await import("../web/lib/registration.js");
  for (const [text, own, changed, namespace] of [
    ['job "a/b" {}', null, "team b", "team b"],
    ['job "a/b" {}', "prod", "team b", "prod"],
    ['job "a/b" {}', null, undefined, "default"],
    ['{"Job": {"ID": "a/b"}}', null, "team b", "team b"],
    ['{"ID": "a/b", "Namespace": "prod"}', null, "team b", "prod"]]) {
    parsed = { ID: "a/b", Namespace: own };
    asked.length = 0;
    const job = await jobFrom(text, "x = 1", changed);
    const plan = await planOf(job);
    await register(job, plan.JobModifyIndex, { Source: text });
    const ns = `namespace=${encodeURIComponent(namespace)}`;
    const [[planAt, planned], [registerAt, registered]] = asked.slice(-2);
    assert.deepEqual([planAt, registerAt], [`/v1/job/a%2Fb/plan?${ns}`, `/v1/jobs?${ns}`]);
    assert.deepEqual([planned.Job.Namespace, registered.Job.Namespace], [namespace, namespace]);
    assert.deepEqual([registered.EnforceIndex, registered.JobModifyIndex], [true, 7]);
    if (asked.length === 3) assert.equal(asked[0][1].Canonicalize, false);
  }
});
