// The values of a job file's variables as one text. Pure.

/** A value of a flag is text that the variable's type converts; lists and objects are written as they are. */
const written = (value) => (/^\s*[[{]/.test(value) ? value :
  JSON.stringify(value).replaceAll(/[$%](?=\{)/g, (mark) => mark + mark));

/** Variable files and flags of a submission as one variable file. A flag goes before a file, as on the command line. */
export function variablesOf({ Variables = "", VariableFlags }) {
  const flags = Object.entries(VariableFlags ?? {});
  // A line of a heredoc may look like such a line: then both stay, and the server says that a name is there twice.
  const given = (line) => !Variables.includes("<<") && flags.some(([name]) => line.split("=")[0].trim() === name);
  const lines = Variables.split("\n").filter((line) => !given(line));
  return [...lines, ...flags.map(([name, value]) => `${name} = ${written(value)}`)].join("\n").trim();
}
