// How full nodes are, from the lists of nodes and allocations. Pure.

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

/** What an allocation takes of its node: MHz and MiB. */
export function taken(alloc) {
  const tasks = Object.values(alloc.AllocatedResources?.Tasks ?? {});
  return { cpu: sum(tasks.map((t) => t.Cpu?.CpuShares ?? 0)), memory: sum(tasks.map((t) => t.Memory?.MemoryMB ?? 0)) };
}

/**
 * One entry for each node, the fullest first: what is taken, what there is, and `[job, namespace, count]` of its jobs.
 */
export function loads(nodes, allocs) {
  const open = new Map();
  for (const alloc of allocs) {
    if (["complete", "failed", "lost"].includes(alloc.ClientStatus) || (alloc.DesiredStatus !== "run" &&
      alloc.ClientStatus === "pending")) continue;
    open.set(alloc.NodeID, [...(open.get(alloc.NodeID) ?? []), alloc]);
  }
  const of = (node) => {
    const here = open.get(node.ID) ?? [];
    const jobs = new Map();
    here.map((a) => JSON.stringify([a.JobID, a.Namespace])).forEach((key) => jobs.set(key, (jobs.get(key) ?? 0) + 1));
    const [all, kept] = [node.NodeResources ?? {}, node.ReservedResources ?? {}];
    return { id: node.ID, name: node.Name, status: node.Status, takes: node.Status === "ready" && node.SchedulingEligibility === "eligible", pool: node.NodePool, datacenter: node.Datacenter,
      cpu: sum(here.map((a) => taken(a).cpu)), memory: sum(here.map((a) => taken(a).memory)),
      cpuTotal: (all.Cpu?.CpuShares ?? 0) - (kept.Cpu?.CpuShares ?? 0),
      memoryTotal: (all.Memory?.MemoryMB ?? 0) - (kept.Memory?.MemoryMB ?? 0),
      ports: new Set(here.flatMap(portsOf)),
      jobs: [...jobs].map(([key, count]) => [...JSON.parse(key), count]).sort((a, b) => b[2] - a[2]) };
  };
  const part = (n) => Math.max(n.cpu / Math.max(1, n.cpuTotal), n.memory / Math.max(1, n.memoryTotal));
  return nodes.map(of).sort((a, b) => part(b) - part(a) || a.name.localeCompare(b.name));
}

/** What the datacenters have together, of nodes that take work: `{name, nodes, cpu, cpuTotal, memory, memoryTotal}`. */
export function byDatacenter(nodes) {
  const all = new Map();
  for (const n of nodes.filter((node) => node.takes)) {
    const old = all.get(n.datacenter) ?? { name: n.datacenter, nodes: 0, cpu: 0, cpuTotal: 0, memory: 0, memoryTotal: 0 };
    all.set(n.datacenter, { name: n.datacenter, nodes: old.nodes + 1, cpu: old.cpu + n.cpu,
      cpuTotal: old.cpuTotal + n.cpuTotal, memory: old.memory + n.memory, memoryTotal: old.memoryTotal + n.memoryTotal });
  }
  return [...all.values()].sort((a, b) => a.name.localeCompare(b.name));
}

/** The ports of its host that an allocation has. */
const portsOf = (alloc) => (alloc.AllocatedResources?.Shared?.Ports ?? []).map((p) => p.Value);

/** Remote runtimes: who reaches them and what is there, `{driver, name, nodes, tasks, unmanaged, cpu, memory}`. */
export function providers(nodes, tasks) {
  const all = new Map();
  const at = (driver, name) => {
    const key = JSON.stringify([driver, name]);
    if (!all.has(key)) all.set(key, { driver, name, nodes: [], tasks: 0, unmanaged: 0, cpu: 0, memory: 0 });
    return all.get(key);
  };
  for (const node of nodes.filter((n) => n.Status === "ready")) {
    for (const [driver, info] of Object.entries(node.Drivers ?? {}).filter(([, d]) => d.Healthy && d.Remote)) {
      const one = at(driver, info.Remote.Provider);
      one.nodes.push(node.Name);
      [one.cpu, one.memory] = [info.Remote.PoolCPU ?? 0, info.Remote.PoolMemoryMB ?? 0];
    }
  }
  for (const task of tasks.filter((t) => t.Provider)) {
    const one = at(task.Driver, task.Provider);
    one.tasks += 1;
    if (task.Unmanaged) one.unmanaged += 1;
  }
  return [...all.values()].sort((a, b) => a.driver.localeCompare(b.driver) || a.name.localeCompare(b.name));
}

/**
 * How often something of this size fits a node beside what it has, once where it wants a port that is free there; 0
 * where the node takes no work.
 */
export function room(node, cpu, memory, port = 0) {
  if (!node.takes || !(cpu > 0 || memory > 0 || port > 0)) return 0;
  if (port > 0 && node.ports.has(port)) return 0;
  const times = [[node.cpuTotal - node.cpu, cpu], [node.memoryTotal - node.memory, memory]]
    .filter(([, wanted]) => wanted > 0).map(([left, wanted]) => Math.floor(left / wanted));
  return Math.max(0, Math.min(...times, ...(port > 0 ? [1] : [])));
}
