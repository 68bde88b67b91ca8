// Tells that the token of this tab ends soon, so that nobody loses what is being typed.
import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "./html.js";
import { read } from "./api.js";
import { CHANGED, token } from "./token.js";
import { span } from "./format.js";

const SOON_MS = 10 * 60_000;
const LOOK_MS = 15_000;

export function Expiry() {
  const [ends, set] = useState(0);
  const [now, tick] = useState(Date.now());
  useEffect(() => {
    const look = async () => {
      set(0);
      if (!token()) return;
      try {
        const end = Date.parse((await read("/v1/acl/token/self")).ExpirationTime ?? "");
        set(end > 0 ? end : 0);
      } catch { /* The page that needs it says what is wrong with it. */ }
    };
    look();
    const timer = setInterval(() => tick(Date.now()), LOOK_MS);
    addEventListener(CHANGED, look);
    return () => { clearInterval(timer); removeEventListener(CHANGED, look); };
  }, []);
  if (!ends || ends - now > SOON_MS) return null;
  const left = ends - now;
  return html`<p class="notice" role="status">▲ ${left > 0 ? `Your token ends in ${span(left)}.` : "Your token has ended."}
    ${" "}<a href=${`/ui/settings/tokens?back=${encodeURIComponent(location.pathname + location.search)}`}>Log in again</a>
    </p>`;
}
