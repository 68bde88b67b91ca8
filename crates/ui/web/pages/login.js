// Who this tab is to the cluster: a token that is pasted, or a login by an identity provider.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { read } from "../lib/api.js";
import { setToken, token } from "../lib/token.js";
import { plain } from "../lib/format.js";
import { begin, withToken } from "../lib/oidc.js";
import { Problem, Title } from "../lib/parts.js";
import { Self } from "./access.js";

const wayBack = () => {
  const back = new URLSearchParams(location.search).get("back") ?? "";
  return back.startsWith("/ui/") ? back : "";
};

export function Login({ failed }) {
  const [value, set] = useState("");
  const [own, setOwn] = useState(token);
  const [methods, setMethods] = useState([]);
  const [said, say] = useState(null);
  useEffect(() => {
    const stop = new AbortController();
    // Without ACLs there are none.
    read("/v1/acl/auth-methods", stop.signal).then((all) => setMethods(all ?? []), () => {});
    return () => stop.abort();
  }, []);
  const admitted = () => {
    setOwn(token());
    if (token() && wayBack()) location.assign(wayBack());
  };
  const attempt = (step) => async () => {
    say(null);
    try { await step(); } catch (error) { say(error); }
  };
  const paste = () => { setToken(value.trim()); admitted(); };
  const expired = new URLSearchParams(location.search).get("expired");
  const of = (type) => methods.filter((method) => method.Type === type);
  return html`<${Title}>Log in<//>${expired && html`<p class="warn" role="alert">The link has been used before, or its
    ten minutes are over. Run <code>drover ui -authenticate</code> again, or paste a token.</p>`}
    ${(said || failed) && html`<${Problem} error=${said ?? { message: failed }} />`}
    ${of("OIDC").length > 0 && html`<div class="box tools">${of("OIDC").map((method) => html`<button key=${method.Name}
      onClick=${attempt(() => begin(method.Name, wayBack()))}>Log in with ${plain(method.Name)}</button>`)}</div>`}
    <div class="box"><p>${own ? "This tab has a token." : "This tab has no token."} It is kept until
    the tab is closed.</p>
    <p class="tools"><input type="password" autocomplete="off" aria-label="Token" value=${value}
      onInput=${(e) => set(e.target.value)} /><button onClick=${paste}>Use this token</button>
      ${of("JWT").map((method) => html`<button key=${method.Name} onClick=${attempt(async () => {
        await withToken(method.Name, value.trim());
        admitted();
      })}>Use it with ${plain(method.Name)}</button>`)}
      ${own && html`<button onClick=${() => { setToken(""); setOwn(""); }}>Forget it</button>`}</p></div>
    <${Self} token=${own} />`;
}
