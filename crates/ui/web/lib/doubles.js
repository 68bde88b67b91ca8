// Instances of remote tasks that no record knows. Pure.

/** The orphaned instances of all sweeps, each with its driver and runtime, and with the record of its slot if any. */
export function orphans(sweeps, tasks) {
  const records = new Map(tasks.map((task) => [task.SlotName, task]));
  return sweeps.flatMap((sweep) => (sweep.Unbound ?? []).map((instance) => ({ ...instance, Driver: sweep.Driver,
    Provider: sweep.Provider, record: records.get(instance.Slot) })));
}

/** Those beside a live instance of the same slot: the slot's work may be done twice. */
export const doubles = (all) => all.filter((instance) => instance.record && !["Gone", "Exited"].includes(
  instance.record.Observed?.State) && !["Gone", "Exited"].includes(instance.Observed?.State));
