// A definition as it is written elsewhere: as a section of changefeed.toml, or as a command.

/** A value of JSON as TOML; strings are quoted alike in both. */
function toml(value) {
  if (Array.isArray(value)) return `[${value.map(toml).join(", ")}]`;
  if (value !== null && typeof value === "object") return `{ ${Object.entries(value).map(([k, v]) => `${bare(k)} = ${toml(v)}`).join(", ")} }`;
  // TOML knows no U+007F in a string, which JSON writes as it is.
  return JSON.stringify(value).replaceAll("\x7f", "\\u007f");
}

const bare = (key) => (/^[A-Za-z0-9_-]+$/.test(key) ? key : JSON.stringify(key));

/** A section of changefeed.toml. */
export function section(kind, name, keys) {
  return [`[${kind}.${name}]`, ...Object.entries(keys).map(([key, value]) => `${bare(key)} = ${toml(value)}`)].join("\n");
}

/** A word of a shell. */
export const word = (text) => (/^[A-Za-z0-9_./:=@%+,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** A command with options: `["--feed", "orders"]`. */
export const command = (words) => words.map(word).join(" ");

/** The options of the command line for a webhook's headers and secrets. */
export function options(keys) {
  return Object.entries(keys).flatMap(([key, value]) => {
    const option = `--${key.replaceAll("_", "-")}`;
    if (key === "header") return Object.entries(value).flatMap(([k, v]) => (typeof v === "string" ? [option, `${k}=${v}`] : ["--header-env", `${k}=${v.env}`]));
    if (key === "secret") return [value].flat().flatMap(({ env }) => ["--secret-env", env]);
    return [option, String(value)];
  });
}
