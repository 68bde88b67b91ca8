// The token of this tab. It is in sessionStorage and goes into a header, never into an address.
const KEY = "drover-token";
export const token = () => sessionStorage.getItem(KEY) ?? "";
/** Name of the event that tells of another token. */
export const CHANGED = "drover-token";
export function setToken(value) {
  if (value) sessionStorage.setItem(KEY, value); else sessionStorage.removeItem(KEY);
  dispatchEvent(new Event(CHANGED));
}
