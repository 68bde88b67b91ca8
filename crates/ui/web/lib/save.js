// Files that people keep: what an address answers, under a name. The token goes into the header as everywhere.
import { ask } from "./api.js";

export async function save(path, name) {
  const reply = await ask(path);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await reply.blob());
  link.download = name;
  link.click();
  // The browser has taken it by then.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
