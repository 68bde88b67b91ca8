/** The devices of a node, each with the allocation that has it: one with ended tasks has none any more. */
export function devices(node, allocs) {
  const holders = new Map();
  for (const alloc of allocs) {
    if (["complete", "failed", "lost"].includes(alloc.ClientStatus)) continue;
    for (const task of Object.values(alloc.AllocatedResources?.Tasks ?? {})) {
      for (const d of task.Devices ?? []) {
        for (const id of d.DeviceIDs ?? []) holders.set(`${d.Vendor}/${d.Type}/${d.Name} ${id}`, alloc);
      }
    }
  }
  return (node.NodeResources?.Devices ?? []).flatMap((group) => (group.Instances ?? []).map((device) => {
    const name = `${group.Vendor}/${group.Type}/${group.Name}`;
    return { name, id: device.ID, healthy: device.Healthy, why: device.HealthDescription,
      alloc: holders.get(`${name} ${device.ID}`) };
  }));
}
