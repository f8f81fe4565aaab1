// Forms made from the description of the HTTP interface: a key that a definition gets is in its form at once.

import { h } from "./dom.js";

/** What stands behind a reference, and behind "this or null"; what is said at the reference goes before. */
export function resolve(schema, schemas) {
  if (!schema) return {};
  if (schema.$ref) return { ref: schema.$ref.split("/").pop(), ...resolve(schemas[schema.$ref.split("/").pop()], schemas), ...said(schema) };
  const choices = schema.oneOf?.filter((one) => one.type !== "null");
  if (choices?.length === 1) return { ...resolve(choices[0], schemas), ...said(schema) };
  return schema;
}

const said = ({ description }) => (description ? { description } : {});

/** Which control a key gets. */
function kindOf(name, schema) {
  const type = [schema.type].flat().find((t) => t && t !== "null");
  if (name === "header") return "headers";
  if (name === "secret") return "secret";
  if (name === "webhook") return "setting";
  if (schema.enum) return "choice";
  if (schema.ref?.startsWith("Choice_Vec")) return "all or some";
  if (schema.ref?.startsWith("Choice_")) return "yes or which";
  if (type === "boolean") return "switch";
  if (type === "integer") return "number";
  if (type === "array") return schema.items?.type === "integer" ? "numbers" : "list";
  return "text";
}

/** How the values of a kind are typed; where that is not how JSON has them, it is said instead of the description. */
const HINTS = {
  headers: "Headers of every request, one per line: Name: value, or Name: $VARIABLE.",
  secret: "The variable with the secret that signs requests, like $SHOP_SECRET; two while it is exchanged.",
  setting: "The address that requests are posted to, or $VARIABLE for one that the instance knows.",
  list: "Separated by commas.", numbers: "Separated by commas.",
  "all or some": "Write true, or columns separated by commas.", "yes or which": "Write true, or a column.",
};
const INSTEAD = ["headers", "secret", "setting"];

const env = (text) => (text.startsWith("$") ? { env: text.slice(1) } : text);
const parts = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);

/** What was typed as a value of JSON; undefined if there is nothing, so that the default holds. */
function read(kind, control) {
  if (kind === "switch") return control.checked || (control.dataset.was === "true" ? false : undefined);
  const text = control.value.trim();
  if (!text) return undefined;
  switch (kind) {
    case "number": return Number(text);
    case "list": return parts(text);
    case "numbers": return parts(text).map(Number);
    case "setting": return env(text);
    case "secret": { const all = text.split(/\s+/).map((one) => ({ env: one.replace(/^\$/, "") })); return all.length === 1 ? all[0] : all; }
    case "headers": return Object.fromEntries(text.split("\n").filter((l) => l.trim()).map((l) => { const colon = l.indexOf(":"); return colon < 0 ? [l.trim(), ""] : [l.slice(0, colon).trim(), env(l.slice(colon + 1).trim())]; }));
    case "all or some": return text === "true" ? true : text === "false" ? false : parts(text);
    case "yes or which": return text === "true" ? true : text === "false" ? false : text;
    default: return text;
  }
}

const shown = (v) => (v !== null && typeof v === "object" && "env" in v ? `$${v.env}` : String(v));

/** A value of JSON as it is typed. */
function write(kind, value) {
  if (value === null || value === undefined) return "";
  if (kind === "headers") return Object.entries(value).map(([name, v]) => `${name}: ${shown(v)}`).join("\n");
  if (kind === "secret") return [value].flat().map(shown).join(" ");
  if (Array.isArray(value)) return value.join(", ");
  if (value === false) return "";
  return shown(value);
}

/**
 * The fields of a definition: an element, and a function that gives what was typed. `main` come first, the rest is
 * behind "More settings".
 */
export function fields({ schema, schemas, main, values, fixed = [], oninput }) {
  const properties = Object.entries(schema.properties ?? {}).filter(([name]) => !fixed.includes(name));
  const made = properties.map(([name, of]) => one(name, resolve(of, schemas), values?.[name], schema.required?.includes(name)));
  const by = new Map(made.map((m) => [m.name, m]));
  const first = main.map((name) => by.get(name)).filter(Boolean);
  const rest = made.filter((m) => !first.includes(m));
  const element = h("div", { class: "fields", oninput },
    h("div", { class: "field-grid" }, first.map((m) => m.element)),
    rest.length > 0 && h("details", {}, h("summary", {}, "More settings"), h("div", { class: "field-grid padded" }, rest.map((m) => m.element))));
  const typed = () => Object.fromEntries([...first, ...rest].map((m) => [m.name, read(m.kind, m.control)]).filter(([, value]) => value !== undefined));
  return { element, typed };
}

function one(name, schema, value, required) {
  const kind = kindOf(name, schema);
  const id = `f-${name}`;
  const note = [!INSTEAD.includes(kind) && schema.description, HINTS[kind]].filter(Boolean).join(" ").replaceAll("`", "");
  const props = { id, name, required, "aria-describedby": note ? `${id}-note` : null, autocomplete: "off", spellcheck: "false" };
  const standard = schema.default === undefined || schema.default === null || typeof schema.default === "object" ? null : String(schema.default);
  let control;
  if (kind === "switch") control = h("input", { ...props, required: false, type: "checkbox", checked: value === true, "data-was": String(value === true) });
  else if (kind === "choice") {
    control = h("select", props, !required && h("option", { value: "" }, "default"), schema.enum.map((v) => h("option", { value: v, selected: v === value }, v)));
  } else if (kind === "headers") control = h("textarea", { ...props, rows: 2 });
  else control = h("input", { ...props, type: kind === "number" ? "number" : "text", min: schema.minimum, max: kind === "number" ? schema.maximum : null, pattern: schema.pattern?.replaceAll("_-]", "_\\-]"), placeholder: standard });
  if (kind !== "switch" && kind !== "choice") control.value = write(kind, value);
  const label = h("label", { for: id }, name.replaceAll("_", " "), required && h("span", { class: "needed" }, " (required)"));
  const text = note && h("p", { class: "hint", id: `${id}-note` }, note);
  const element = h("div", { class: `one ${kind === "switch" ? "check" : ""}` }, kind === "switch" ? [control, label] : [label, control], text);
  return { name, kind, control, element };
}
