// The shell: navigation, theme, keys, and which page is shown.
import { render } from "./vendor/preact.js";
import { useEffect, useState } from "./vendor/hooks.js";
import { write } from "./lib/api.js";
import { Expiry } from "./lib/expiry.js";
import { html } from "./lib/html.js";
import { complete } from "./lib/oidc.js";
import { Keyboard } from "./lib/keyboard.js";
import { Palette } from "./lib/palette.js";
import { Title } from "./lib/parts.js";
import { setToken } from "./lib/token.js";
import { parse } from "./lib/routes.js";
import { APPLIED, apply, choose, darkNow } from "./lib/settings.js";
import { Access, AccessOf } from "./pages/access.js";
import { Exec } from "./pages/exec.js";
import { Files } from "./pages/files.js";
import { Job, Jobs } from "./pages/jobs.js";
import { Servers, Services, Topology } from "./pages/cluster.js";
import { Allocation } from "./pages/allocation.js";
import { Client, Clients } from "./pages/clients.js";
import { Evaluations } from "./pages/evaluations.js";
import { Monitor } from "./pages/monitor.js";
import { Remote, Slot } from "./pages/remote.js";
import { Login } from "./pages/login.js";
import { NamespaceOf, Namespaces } from "./pages/namespaces.js";
import { Run } from "./pages/run.js";
import { Settings } from "./pages/settings.js";
import { Volume, Volumes } from "./pages/storage.js";
import { Trends } from "./pages/trends.js";
import { NewVariable, Variable, Variables } from "./pages/variables.js";

const Missing = () => html`<${Title}>There is no such page<//><p><a href="/ui/jobs">Jobs</a></p>`;
const PAGES = { jobs: Jobs, run: Run, job: Job, allocation: Allocation, clients: Clients, client: Client, remote: Remote,
  slot: Slot, evaluations: Evaluations, login: Login, missing: Missing, servers: Servers, services: Services,
  topology: Topology, variable: Variable, variables: Variables, newVariable: NewVariable, access: Access,
  accessOf: AccessOf, exec: Exec, files: Files, trends: Trends, namespaces: Namespaces,
  namespaceOf: NamespaceOf, settings: Settings, volume: Volume, volumes: Volumes,
  monitor: Monitor };
// Title and letter of each page; the letters are Nomad's where it has the page.
const NAV = [["jobs", "Jobs", "j"], ["remote", "Remote", "m"], ["clients", "Clients", "c"],
  ["servers", "Servers", "s"], ["topology", "Topology", "t"], ["trends", "Last hour", "h"], ["services", "Services", "i"],
  ["storage", "Storage", "r"],
  ["variables", "Variables", "v"], ["evaluations", "Evaluations", "e"],
  ["administration", "Access", "a"], ["settings/tokens", "Log in", "p"]];

apply();
// Whoever follows the system follows it while it changes.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);

/** `failed`: why a login that an identity provider has ended did not succeed. */
function App({ failed }) {
  const [at, go] = useState(() => location.pathname + location.search);
  const [dark, setDark] = useState(darkNow);
  const [searches, search] = useState(false);
  const moved = () => go(location.pathname + location.search);
  const visit = (href) => { history.pushState(null, "", href); moved(); scrollTo(0, 0); };
  useEffect(() => {
    const click = (e) => {
      const link = e.target.closest?.("a");
      if (!link || e.defaultPrevented || e.button || e.ctrlKey || e.metaKey || e.shiftKey || link.target) return;
      const url = new URL(link.href, location.href);
      if (url.origin !== location.origin || !url.pathname.startsWith("/ui/") || url.hash) return;
      e.preventDefault();
      visit(url.pathname + url.search);
    };
    const key = (e) => {
      if ((e.ctrlKey || e.metaKey) && e.key === "k" && !e.target.closest?.(".terminal")) {
        e.preventDefault();
        search(true);
      }
    };
    const looks = () => setDark(darkNow());
    addEventListener(APPLIED, looks);
    addEventListener("popstate", moved);
    document.addEventListener("click", click);
    document.addEventListener("keydown", key);
    return () => {
      removeEventListener(APPLIED, looks);
      removeEventListener("popstate", moved);
      document.removeEventListener("click", click);
      document.removeEventListener("keydown", key);
    };
  }, []);
  const [path, query] = at.split("?");
  const route = parse(path, query);
  useEffect(() => { document.title = `${route.id ?? route.page} – Drover`; }, [at]);
  const flip = () => choose("theme", darkNow() ? "light" : "dark");
  return html`<a class="skip" href="#main">Skip to the page</a>
    <header><a class="name" href="/ui/jobs">Drover</a><nav aria-label="Pages">${NAV.map(([to, title, letter]) => html`
      <a href=${`/ui/${to}`} data-letter=${letter}
      aria-current=${path.startsWith(`/ui/${to}`) ? "page" : null}>${title}</a>`)}</nav>
      <button onClick=${() => search(true)} title="Ctrl+K">Go to</button>
      <button onClick=${flip}>${dark ? "Light" : "Dark"}</button>
      <a href="/ui/settings/user-settings"
      aria-current=${route.page === "settings" ? "page" : null}>Settings</a></header>
    <${Expiry} /><main id="main"><${PAGES[route.page]} ...${route} failed=${failed} pages=${NAV}
      key=${[route.page, route.part, route.namespace, route.id].join(" ")} /></main>
    <${Keyboard} pages=${NAV} route=${route} visit=${visit} />
    ${searches && html`<${Palette} visit=${visit}
      pages=${[...NAV, ["jobs/run", "Run a job"], ["settings/user-settings", "Settings"]]}
      close=${() => search(false)} />`}`;
}

/** A link of `drover ui -authenticate` brings a token that is good for one exchange: it leaves the address first. */
async function admitted() {
  const url = new URL(location.href);
  const secret = url.searchParams.get("ott");
  if (!secret) return;
  url.searchParams.delete("ott");
  history.replaceState(null, "", url.pathname + url.search);
  try {
    const { Token } = await write("/v1/acl/token/onetime/exchange", { OneTimeSecretID: secret });
    setToken(Token.SecretID);
  } catch {
    // It has been used, or its ten minutes are over: the page says what may be seen without it, and how to log in.
    history.replaceState(null, "", "/ui/settings/tokens?expired=true");
  }
}

await admitted();
const login = await complete();
if (login?.back) history.replaceState(null, "", login.back);
render(html`<${App} failed=${login?.failed} />`, document.getElementById("app"));
