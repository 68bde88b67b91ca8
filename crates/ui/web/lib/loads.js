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
    return { id: node.ID, name: node.Name, status: node.Status, pool: node.NodePool, datacenter: node.Datacenter,
      cpu: sum(here.map((a) => taken(a).cpu)), memory: sum(here.map((a) => taken(a).memory)),
      cpuTotal: (all.Cpu?.CpuShares ?? 0) - (kept.Cpu?.CpuShares ?? 0),
      memoryTotal: (all.Memory?.MemoryMB ?? 0) - (kept.Memory?.MemoryMB ?? 0),
      jobs: [...jobs].map(([key, count]) => [...JSON.parse(key), count]).sort((a, b) => b[2] - a[2]) };
  };
  const part = (n) => Math.max(n.cpu / Math.max(1, n.cpuTotal), n.memory / Math.max(1, n.memoryTotal));
  return nodes.map(of).sort((a, b) => part(b) - part(a) || a.name.localeCompare(b.name));
}
