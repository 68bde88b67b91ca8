// The one place that ties htm to preact: templates become elements and text nodes, never markup from strings.
import { h } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
