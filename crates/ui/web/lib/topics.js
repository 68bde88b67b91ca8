// Which events of the cluster concern what a path shows. Pure.

const OF = [
  ["/v1/jobs", ["Job", "Allocation", "Evaluation", "Deployment", "RemoteTask"]],
  ["/v1/job/", ["Job", "Allocation", "Evaluation", "Deployment", "Service", "RemoteTask"]],
  ["/v1/allocation", ["Allocation"]],
  ["/v1/deployment", ["Deployment", "Allocation"]],
  ["/v1/evaluation", ["Evaluation"]],
  ["/v1/node", ["Node", "Allocation"]],
  ["/v1/service", ["Service"]],
  ["/v1/remote/task", ["RemoteTask"]],
];

/** Topics of the event stream; none = no event tells of a change there. */
export function topicsOf(paths) {
  const each = paths.map((path) => OF.find(([prefix]) => path.startsWith(prefix))?.[1]);
  return each.includes(undefined) ? [] : [...new Set(each.flat())];
}

/** The name under which tabs with the same token share one stream. It is no secret and tells nothing of one. */
export function sharedName(token) {
  let hash = 2166136261;
  for (const c of token) hash = Math.imul(hash ^ c.codePointAt(0), 16777619) >>> 0;
  return `drover-events-${hash.toString(16)}`;
}
