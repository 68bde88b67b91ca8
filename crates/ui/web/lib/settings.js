// What a person has chosen for this browser. There are no secrets among it: the token is kept by `token.js`.

/** Each setting with its values; the first is what holds until somebody chooses. */
export const SETTINGS = {
  theme: ["system", "light", "dark"],
  density: ["comfortable", "compact"],
  times: ["ago", "clock"],
  zone: ["local", "UTC"],
  keys: ["on", "off"],
};

export function chosen(name) {
  const value = localStorage.getItem(`drover-${name}`);
  return SETTINGS[name].includes(value) ? value : SETTINGS[name][0];
}

export const darkNow = () => (chosen("theme") === "system" ? matchMedia("(prefers-color-scheme: dark)").matches :
  chosen("theme") === "dark");

/** Tells the window that the document looks otherwise. */
export const APPLIED = "drover-settings";

/** Makes the document look as it was chosen. */
export function apply() {
  document.documentElement.dataset.theme = darkNow() ? "dark" : "light";
  document.documentElement.dataset.density = chosen("density");
  dispatchEvent(new Event(APPLIED));
}

export function choose(name, value) {
  localStorage.setItem(`drover-${name}`, value);
  apply();
}

/** The letters that were chosen for what keys mean, by the id of the meaning: see `letters.js`. */
export function letters() {
  try { return JSON.parse(localStorage.getItem("drover-letters")) ?? {}; } catch { return {}; }
}

export const chooseLetters = (chosen) => localStorage.setItem("drover-letters", JSON.stringify(chosen));
