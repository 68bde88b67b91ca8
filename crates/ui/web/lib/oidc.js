// Logins by an identity provider: to it and back. What the way back needs stays in this tab.
import { write } from "./api.js";
import { setToken } from "./token.js";

const KEPT = "drover-login";
const BACK = "/ui/settings/tokens";
const here = () => location.origin + BACK;

/** Goes to the provider of a method; `back` is where the person wanted to be. */
export async function begin(method, back) {
  const nonce = [...crypto.getRandomValues(new Uint8Array(16))].map((n) => n.toString(16).padStart(2, "0")).join("");
  const asked = { AuthMethodName: method, RedirectURI: here(), ClientNonce: nonce };
  const { AuthURL } = await write("/v1/acl/oidc/auth-url", asked);
  sessionStorage.setItem(KEPT, JSON.stringify({ ...asked, back }));
  location.assign(AuthURL);
}

/**
 * Ends a login whose provider has led back here, and takes what it says out of the address first. `{back}` of who is
 * logged in, `{failed}` with the reason, or null where nobody comes from a provider.
 */
export async function complete() {
  const said = new URL(location.href).searchParams;
  if (location.pathname !== BACK || !said.has("state")) return null;
  history.replaceState(null, "", BACK);
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
  sessionStorage.removeItem(KEPT);
  if (!kept) return { failed: "This login was not begun in this tab. Begin it here." };
  if (said.has("error")) {
    return { failed: `The identity provider did not log you in: ${said.get("error")} ${said.get("error_description") ?? ""}` };
  }
  const { back, ...asked } = kept;
  try {
    const token = await write("/v1/acl/oidc/complete-auth", { ...asked, State: said.get("state"),
      Code: said.get("code") ?? "", Iss: said.get("iss") ?? "" });
    setToken(token.SecretID);
    return { back };
  } catch (error) {
    return { failed: error.message };
  }
}

/** Logs in with a token of the provider itself. */
export async function withToken(method, given) {
  setToken((await write("/v1/acl/login", { AuthMethodName: method, LoginToken: given })).SecretID);
}
