// Which page an address means. Nomad's addresses are kept, so that links from elsewhere lead here. Pure.

const decode = (part) => { try { return decodeURIComponent(part); } catch { return part; } };

/** `{id, namespace}` of `ID@NAMESPACE`; without one the query names it. */
function named(whole, params) {
  const at = whole.lastIndexOf("@");
  return at > 0 ? { id: whole.slice(0, at), namespace: whole.slice(at + 1) } :
    { id: whole, namespace: params.get("namespace") || "default" };
}

/** `{page, id, …}` of a path such as `/ui/jobs/web@prod/versions`. */
export function parse(path, query = "") {
  const parts = path.replace(/^\/ui\/?/, "").split("/").filter(Boolean).map(decode);
  const params = new URLSearchParams(query);
  const [first = "jobs", id, ...rest] = parts;
  if (first === "jobs" && id === "run") {
    return { page: "run", ...(params.get("job") && { id: params.get("job"),
      namespace: params.get("namespace") || "default" }) };
  }
  if (first === "jobs" && id) return { page: "job", ...named(id, params), tab: rest[0] ?? "" };
  if (first === "allocations" && id) {
    // The files of a task lie below its name.
    const below = rest[0] === "fs" ? [rest.slice(1)] : rest[1] === "fs" ? [[rest[0], ...rest.slice(2)]] : [];
    if (below.length) return { page: "files", id, path: `/${below[0].join("/")}` };
    return { page: "allocation", id, task: rest[0] ?? "", tab: rest[1] === "logs" ? "logs" : "" };
  }
  if (["clients", "servers"].includes(first) && id && rest[0] === "monitor") {
    return { page: "monitor", part: first === "clients" ? "node" : "server", id };
  }
  if (first === "clients" && id) return { page: "client", id };
  if (first === "evaluations") return { page: "evaluations", id: id ?? params.get("currentEval") ?? "" };
  if (first === "remote" && parts.length > 1) return { page: "slot", id: parts.slice(1).join("/") };
  if (first === "settings" && id === "tokens") return { page: "login" };
  if (first === "settings") return { page: "settings" };
  if (first === "variables" && id === "new") return { page: "newVariable" };
  if (first === "variables" && id === "var" && rest.length) {
    return { page: "variable", ...named(rest.join("/"), params) };
  }
  if (first === "storage" && id === "volumes" && rest.length) {
    const below = ["dynamic", "csi"].includes(rest[0]) ? rest.slice(1) : rest;
    return { page: "volume", ...named(below.join("/"), params) };
  }
  if (first === "variables" && id === "path") return { page: "variables", id: rest.join("/") };
  if (first === "administration" && id === "namespaces") {
    return rest.length ? { page: "namespaceOf", id: rest.join("/") } : { page: "namespaces" };
  }
  if (first === "administration" && ["policies", "roles", "tokens"].includes(id)) {
    return rest.length ? { page: "accessOf", part: id, id: rest.join("/") } : { page: "access", part: id };
  }
  if (first === "exec" && id) {
    return { page: "exec", id, namespace: params.get("namespace") || "default", group: rest[0] ?? "",
      task: rest[1] ?? "", alloc: params.get("allocation") ?? "" };
  }
  if (first === "servers") return { page: "servers" };
  const known = { jobs: "jobs", clients: "clients", remote: "remote", services: "services", storage: "volumes",
    administration: "access", topology: "topology", trends: "trends", variables: "variables" };
  return { page: known[first] ?? "missing" };
}

export const jobHref = (id, namespace, tab = "") =>
  `/ui/jobs/${encodeURIComponent(`${id}@${namespace}`)}${tab ? `/${tab}` : ""}`;
export const editHref = (id, namespace) => `/ui/jobs/run?${new URLSearchParams({ job: id, namespace })}`;
export const accessHref = (part, id = "") =>
  `/ui/administration/${part}${id ? `/${encodeURIComponent(id)}` : ""}`;
/** The log of a task of an allocation. */
export const logHref = (id, task) => `${allocHref(id)}/${encodeURIComponent(task)}/logs`;
export const allocHref = (id) => `/ui/allocations/${encodeURIComponent(id)}`;
export const filesHref = (id, path) => `${allocHref(id)}/fs/${path.split("/").filter(Boolean).map(encodeURIComponent)
  .join("/")}`;
/** A terminal in a task of an allocation; `a` names its job, namespace and group. */
export const execHref = (a, task) => `/ui/exec/${[a.JobID, a.TaskGroup, task].map(encodeURIComponent).join("/")}?` +
  new URLSearchParams({ namespace: a.Namespace, allocation: a.ID.slice(0, 8) });
export const evalHref = (id) => `/ui/evaluations?${new URLSearchParams({ currentEval: id })}`;
/** The log of a node's or a server's agent. */
export const monitorHref = (part, id) =>
  `/ui/${part === "node" ? "clients" : "servers"}/${encodeURIComponent(id)}/monitor`;
export const nodeHref = (id) => `/ui/clients/${encodeURIComponent(id)}`;
export const remoteHref = (filter) => `/ui/remote?${new URLSearchParams({ q: filter })}`;
export const slotHref = (slot) => `/ui/remote/${slot.split("/").map(encodeURIComponent).join("/")}`;
export const volumeHref = (id, namespace) => `/ui/storage/volumes/dynamic/${encodeURIComponent(`${id}@${namespace}`)}`;
export const variableHref = (path, namespace) => `/ui/variables/var/${encodeURIComponent(`${path}@${namespace}`)}`;

/** The page above the one of a route; null where the page itself knows it, or there is none. */
export function up({ page, id, namespace, tab, part }) {
  const above = { client: "/ui/clients", slot: "/ui/remote", variable: "/ui/variables", newVariable: "/ui/variables",
    volume: "/ui/storage", namespaceOf: "/ui/administration/namespaces", run: "/ui/jobs" };
  if (page === "job") return tab ? jobHref(id, namespace) : "/ui/jobs";
  if (page === "files") return allocHref(id);
  if (page === "exec") return jobHref(id, namespace);
  if (page === "accessOf") return accessHref(part);
  return above[page] ?? null;
}
