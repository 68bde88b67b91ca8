// How the scheduler has compared nodes for an allocation. Pure.
import { unplaced } from "./format.js";

const short = (n) => String(Math.round(n * 1000) / 1000);

/** `{sentence, parts, rows}`: the rows are the nodes that were scored, the best first, each with its parts by name. */
export function scores(metrics) {
  const all = metrics?.ScoreMetaData ?? [];
  // The sum of the parts is the score itself.
  const partsOf = (node) => Object.entries(node.Scores ?? {}).filter(([part]) => part !== "normalized-score");
  const parts = [...new Set(all.flatMap((node) => partsOf(node).map(([part]) => part)))];
  const rows = [...all].sort((a, b) => b.NormScore - a.NormScore).map((node) => ({ id: node.NodeID,
    score: short(node.NormScore), parts: Object.fromEntries(partsOf(node).map(([part, n]) => [part, short(n)])) }));
  return { sentence: `${unplaced(metrics).join("; ")}.`, parts, rows };
}
