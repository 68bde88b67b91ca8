// A command in a task, over a WebSocket: what a terminal and the runs of actions share.
import { decode } from "./base64.js";
import { token } from "./token.js";

/** So often it is shown that somebody is there, to everybody between. */
const ALIVE_MS = 10_000;

/**
 * Opens a session at a path of the API. Calls `opened()`, then `out(bytes)` for what the command says, and `over(text,
 * code)` once: why it has ended, with its exit code where there is one. Returns `{send, close}`; whoever closes is told
 * nothing more.
 */
export function session(path, query, { opened, out, over }) {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const whole = new URLSearchParams({ ...query, ws_handshake: "true" });
  const socket = new WebSocket(`${scheme}://${location.host}${path}?${whole}`);
  const send = (message) => { if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message)); };
  const alive = setInterval(() => send({}), ALIVE_MS);
  let ended = false;
  const end = (text, code = null) => {
    if (ended) return;
    ended = true;
    clearInterval(alive);
    over(text, code);
  };
  socket.onopen = () => { send({ version: 1, auth_token: token() }); opened?.(); };
  socket.onmessage = ({ data }) => {
    const { stdout, stderr, exited, result } = JSON.parse(data);
    [stdout, stderr].forEach((part) => { if (part?.data) out(decode(part.data)); });
    const code = result?.exit_code ?? 0;
    if (exited) end(`The command ended with exit code ${code}.`, code);
  };
  socket.onclose = ({ code, reason }) => end(reason ? `Closed: ${reason}` :
    `The connection was lost (code ${code}); the agent's log says more.`);
  return { send, close: () => { ended = true; clearInterval(alive); socket.close(); } };
}

/** The path of an action of a job. */
export const actionPath = (job) => `/v1/job/${encodeURIComponent(job)}/action`;
