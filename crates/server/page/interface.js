// The HTTP interface as the server describes it: every request, what it takes and what it answers.

import { h, link } from "./dom.js";
import { get } from "./api.js";
import { badge, facts, heading, panel } from "./parts.js";

const TONES = { get: "calm", post: "good", put: "warn", delete: "bad" };

export const api = {
  still: true,
  async load({ signal }) {
    const [description, status] = await Promise.all([get("/api/openapi.json", signal), get("/api/status", signal)]);
    return { description, status };
  },
  render({ description }) {
    const schemas = description.components?.schemas ?? {};
    const operations = Object.entries(description.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]) => ({ path, method, ...operation })));
    return [
      heading("API", { note: "What this server answers over HTTP, to programs in any language.", aside: link("/api/openapi.json", "openapi.json") }),
      h("p", { class: "note" }, `Version ${description.info.version}. Ids, cursors and versions are texts; counts are numbers. Errors are problem documents (RFC 9457).`),
      description.tags.map((tag) => panel(tag.description, { id: tag.name }, h("ul", { class: "plain-list" },
        operations.filter((o) => o.tags?.includes(tag.name)).map((o) => request(o, schemas))))),
    ];
  },
};

function request(o, schemas) {
  const body = o.requestBody?.content["application/json"]?.schema;
  const answers = Object.entries(o.responses).filter(([status]) => status.startsWith("2"));
  return h("li", { "data-key": o.operationId }, h("details", {},
    h("summary", {}, badge(o.method.toUpperCase(), TONES[o.method]), " ", h("code", {}, o.path), h("span", { class: "under" }, o.summary ?? o.description)),
    facts([
      ...(o.parameters ?? []).map((p) => [p.name, [`${form(p.schema, schemas)}${p.required ? "" : ", optional"}`, p.description && `: ${p.description}`]]),
      ["Body", body && [o.requestBody.required ? "" : "optional", members(body, schemas)]],
      ...answers.map(([status, answer]) => [status, answer.content ? Object.entries(answer.content).map(([kind, { schema }]) => [h("span", { class: "under" }, kind), kind === "application/json" && members(schema, schemas)]) : "nothing"]),
    ])));
}

const resolve = (schema, schemas) => (schema?.$ref ? schemas[schema.$ref.split("/").pop()] : schema) ?? {};

/** The members of an object, one a line. */
function members(schema, schemas) {
  const { properties, required = [] } = resolve(schema, schemas);
  if (!properties) return h("code", {}, form(schema, schemas));
  return h("ul", { class: "plain-list" }, Object.entries(properties).map(([name, of]) => h("li", {},
    h("code", {}, name), ` ${form(of, schemas)}${required.includes(name) ? "" : ", optional"}`, of.description && h("span", { class: "under" }, of.description))));
}

/** What a value looks like, in a word or two. */
function form(schema, schemas) {
  if (!schema) return "anything";
  if (schema.$ref) {
    const { enum: values, type } = resolve(schema, schemas);
    return values ? values.map((v) => JSON.stringify(v)).join(" or ") : type === "object" || !type ? schema.$ref.split("/").pop() : type;
  }
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices) return choices.map((one) => form(one, schemas)).join(" or ");
  if (schema.enum) return schema.enum.map((v) => JSON.stringify(v)).join(" or ");
  if (schema.type === "array") return `list of ${form(schema.items, schemas)}`;
  const type = [schema.type ?? "anything"].flat().join(" or ");
  return schema.format ? `${type} (${schema.format})` : type;
}
