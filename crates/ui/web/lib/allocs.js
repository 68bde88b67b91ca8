// Lists of allocations. Pure; what is asked for again of the same object is remembered.
import { remembered } from "./remembered.js";

/** The newest first: of allocations, or of anything else with the index of its creation. */
export const newestFirst = remembered((allocs) => [...allocs].sort((a, b) => b.CreateIndex - a.CreateIndex));

/** What a filter is compared with, in small letters. */
export const allocWords = remembered((a) =>
  `${a.ID} ${a.Name} ${a.ClientStatus} ${a.NodeName} ${a.JobVersion}`.toLowerCase());

/** The newest allocation that has, or had, a log, and the first task of its group; undefined for none. */
export function talking(job, allocs) {
  const all = newestFirst(allocs).filter((a) => a.ClientStatus !== "pending");
  const found = all.find((a) => a.ClientStatus === "running") ?? all[0];
  const group = (job.TaskGroups ?? []).find((g) => g.Name === found?.TaskGroup);
  return group?.Tasks?.length ? { id: found.ID, task: group.Tasks[0].Name } : undefined;
}
