// What the search over everything finds: pages, objects of the cluster, remote tasks by their provider's name. Pure.
import { allocHref, jobHref, nodeHref, slotHref } from "./routes.js";

const MOST = 30;

/** Where a match of `/v1/search/fuzzy` leads, by its kind. */
const KINDS = {
  jobs: (m) => ({ kind: "job", name: m.ID, more: m.Scope[0], href: jobHref(m.Scope[1] ?? m.ID, m.Scope[0]) }),
  allocs: (m) => ({ kind: "allocation", name: m.ID, more: m.Scope[1].slice(0, 8), href: allocHref(m.Scope[1]) }),
  nodes: (m) => ({ kind: "client", name: m.ID, more: m.Scope[0].slice(0, 8), href: nodeHref(m.Scope[0]) }),
};

/** Other words for pages, after a colon: those of the command line and of Kubernetes' terminals. */
const COMMANDS = { nodes: "clients", no: "clients", node: "clients", deploy: "jobs", po: "jobs", allocs: "jobs",
  members: "servers", vars: "variables", evals: "evaluations", volumes: "storage", acl: "administration",
  trends: "trends", tasks: "remote", run: "jobs/run" };

/** `[{kind, name, more, href}]`: pages first, then remote tasks, then what the servers have found. */
export function matches(text, pages, tasks, found) {
  const wanted = text.trim().toLowerCase();
  if (wanted.startsWith(":")) {
    const word = wanted.slice(1);
    const to = (path) => Object.keys(COMMANDS).some((name) => COMMANDS[name] === path && name.startsWith(word));
    return pages.filter(([path]) => path.startsWith(word) || to(path)).map(([path, title]) =>
      ({ kind: "page", name: title, more: "", href: `/ui/${path}` }));
  }
  const has = (...words) => words.some((word) => String(word ?? "").toLowerCase().includes(wanted));
  const ofPages = pages.filter(([, title]) => has(title)).map(([to, title]) =>
    ({ kind: "page", name: title, more: "", href: `/ui/${to}` }));
  const ofTasks = wanted ? tasks.filter((t) => has(t.SlotName, t.ProviderId)).map((t) =>
    ({ kind: "remote task", name: t.SlotName, more: t.ProviderId ?? "", href: slotHref(t.SlotName) })) : [];
  const ofServers = wanted ? Object.entries(KINDS).flatMap(([kind, made]) => (found?.[kind] ?? []).map(made)) : [];
  return [...ofPages, ...ofTasks, ...ofServers].slice(0, MOST);
}
