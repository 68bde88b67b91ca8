// Who may do what: policies, roles and tokens. What the server refuses is shown in its own words, with the line.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { read, useLive, write } from "../lib/api.js";
import { plain, words } from "../lib/format.js";
import { accessHref } from "../lib/routes.js";
import { Act, Age, Cli, Loaded, Problem, Search, Table, Title, useFilter } from "../lib/parts.js";

const PARTS = { policies: "Policies", roles: "Roles", tokens: "Tokens", namespaces: "Namespaces" };
export const Tabs = ({ part }) => html`<nav class="tabs" aria-label="Parts of access control">
  ${Object.entries(PARTS).map(([name, title]) => html`<a href=${accessHref(name)}
    aria-current=${part === name ? "page" : null}>${title}</a>`)}</nav>`;

const names = (links) => (links ?? []).map((link) => plain(link.Name)).join(", ");
const until = (time) => (time && !time.startsWith("0001") ? new Date(time).toLocaleString() : "never");

const LISTS = {
  policies: { path: "/v1/acl/policies", cli: "drover acl policy list", heads: ["Name", "Description"],
    key: (p) => p.Name, cells: (p) => [plain(p.Description)], none: "There is no policy." },
  roles: { path: "/v1/acl/roles", cli: "drover acl role list", heads: ["Name", "Policies", "*Description"],
    key: (r) => r.ID, cells: (r) => [names(r.Policies), plain(r.Description)], none: "There is no role." },
  tokens: { path: "/v1/acl/tokens", cli: "drover acl token list",
    heads: ["Name", "Type", "Policies and roles", "*Ends"], key: (t) => t.AccessorID, none: "There is no token.",
    cells: (t) => [t.Type, [...(t.Policies ?? []).map(plain), names(t.Roles)].filter(Boolean).join(", "),
      until(t.ExpirationTime)] },
};

export function Access({ part = "policies" }) {
  const list = LISTS[part];
  const live = useLive([list.path]);
  const [filter, setFilter] = useFilter();
  const name = (row) => row.Name || list.key(row);
  return html`<${Title}>${PARTS[part]}<//><${Tabs} part=${part} />
    <div class="tools"><${Search} value=${filter} onInput=${setFilter} />
      <a href=${accessHref(part, "new")}>New</a></div>
    <${Loaded} live=${live}>${([all]) => html`<${Table} heads=${list.heads} none=${list.none}
      rows=${all.filter((row) => name(row).includes(filter))} row=${(row) => html`<tr key=${list.key(row)}>
      <td class="name"><a href=${accessHref(part, list.key(row))}>${plain(name(row))}</a></td>
      ${list.cells(row).map((cell, i) => html`<td
        class=${list.heads[i + 1].startsWith("*") ? "wide" : ""}>${cell}</td>`)}</tr>`} />`}<//>
    <${Cli} line=${list.cli} raw=${list.path} />`;
}

const ONE = { policies: "/v1/acl/policy/", roles: "/v1/acl/role/", tokens: "/v1/acl/token/" };
const KIND = { policies: "policy", roles: "role", tokens: "token" };

export function AccessOf({ part, id }) {
  if (id === "new") {
    return html`<${Title}>New ${KIND[part]}<//><${Tabs} part=${part} /><${Edit} part=${part} of=${null} />`;
  }
  const path = ONE[part] + encodeURIComponent(id);
  const live = useLive([path]);
  return html`<${Title}>${plain(id)}<//><${Tabs} part=${part} /><${Loaded} live=${live}>${([of]) => html`<${Edit}
    part=${part} of=${of} />`}<//><${Cli} line=${`drover acl ${KIND[part]} info ${id}`} raw=${path} />`;
}

const RULES = "namespace \"default\" {\n  policy = \"read\"\n}\n";

/** What is typed, and the request that it stands for. */
function Edit({ part, of }) {
  const links = (of?.Policies ?? []).map((link) => link.Name ?? link).join(", ");
  const [form, set] = useState({ name: of?.Name ?? "", description: of?.Description ?? "", rules: of?.Rules ?? RULES,
    policies: links, type: of?.Type ?? "client", ttl: "" });
  const [said, say] = useState(null);
  const [made, show] = useState(null);
  const field = (label, key) => html`<p class="tools"><label>${label} <input aria-label=${label} value=${form[key]}
    onInput=${(e) => set({ ...form, [key]: e.target.value })} /></label></p>`;
  const linked = words(form.policies).map((name) => ({ Name: name }));
  const request = {
    policies: () => [`${ONE.policies}${encodeURIComponent(form.name)}`,
      { Name: form.name, Description: form.description, Rules: form.rules, JobACL: of?.JobACL ?? null }],
    roles: () => [of ? ONE.roles + of.ID : "/v1/acl/role",
      { ID: of?.ID, Name: form.name, Description: form.description, Policies: linked }],
    tokens: () => [of ? ONE.tokens + of.AccessorID : "/v1/acl/token", { AccessorID: of?.AccessorID, Name: form.name,
      Type: form.type, Policies: words(form.policies), Roles: of?.Roles, ExpirationTTL: form.ttl || undefined }],
  }[part];
  const save = async () => {
    say(null);
    try {
      const answer = await write(...request());
      if (part === "tokens" && !of) show(answer);
      else location.assign(accessHref(part));
    } catch (error) {
      say(error);
    }
  };
  if (made) {
    return html`<div class="box" role="status"><b>The token is made.</b><dl>
      <dt>Secret</dt><dd><code>${made.SecretID}</code></dd><dt>Accessor</dt><dd>${made.AccessorID}</dd>
      <dt>Ends</dt><dd>${until(made.ExpirationTime)}</dd></dl>
      <p>Copy the secret now: whoever has it has the token.</p></div>`;
  }
  return html`${said && html`<${Problem} error=${said} />`}<div class="box">
    ${!(part === "policies" && of) && field("Name", "name")}
    ${part !== "tokens" && field("Description", "description")}
    ${part === "policies" && html`<textarea aria-label="Rules" rows="14" spellcheck="false" value=${form.rules}
      onInput=${(e) => set({ ...form, rules: e.target.value })}></textarea>`}
    ${part === "tokens" && html`<p class="tools"><label>Type <select aria-label="Type" disabled=${Boolean(of)}
      value=${form.type} onChange=${(e) => set({ ...form, type: e.target.value })}><option>client</option>
      <option>management</option></select></label></p>`}
    ${part !== "policies" && form.type === "client" && field("Policies", "policies")}
    ${part === "tokens" && !of && field("Ends after (such as 8h)", "ttl")}
    ${part === "tokens" && of && html`<p class="soft">Made <${Age} at=${Date.parse(of.CreateTime) * 1e6} past />,
      ends: ${until(of.ExpirationTime)}</p>`}
    <p class="tools"><button onClick=${save}>Save</button>${of && html`<${Act} label="Delete" danger
      question=${`Delete the ${KIND[part]} ${form.name || of.AccessorID}? Whoever uses it loses what it allows.`}
      run=${async () => {
        await write(ONE[part] + encodeURIComponent(of.ID ?? of.AccessorID ?? of.Name), undefined, "DELETE");
        location.assign(accessHref(part));
      }} />`}</p></div>`;
}

/** Whose token this is, and what it may. */
export function Self({ token }) {
  const [own, set] = useState(null);
  useEffect(() => {
    let gone = false;
    const got = (value) => { if (!gone) set(value); };
    got(null);
    if (token) read("/v1/acl/token/self").then(got, (error) => got({ error }));
    return () => { gone = true; };
  }, [token]);
  if (!own) return null;
  if (own.error) return html`<${Problem} error=${own.error} />`;
  return html`<div class="box"><dl><dt>Name</dt><dd>${plain(own.Name) || "–"}</dd><dt>Type</dt><dd>${own.Type}</dd>
    <dt>May</dt><dd>${own.Type === "management" ? "everything" : [...(own.Policies ?? []).map(plain),
      names(own.Roles)].filter(Boolean).join(", ") || "what anonymous requests may"}</dd>
    <dt>Ends</dt><dd>${until(own.ExpirationTime)}</dd></dl></div>`;
}
