// Forms that create and change definitions. Beside each stands what it is in changefeed.toml or as a command: it is the
// same definition, in the one form that it has everywhere.

import { h } from "./dom.js";
import { Problem, get, tell } from "./api.js";
import { fields } from "./form.js";
import { command, options, section } from "./preview.js";
import { explained, heading, panel, say } from "./parts.js";

const of = (kind, name) => `/api/${kind}/${encodeURIComponent(name)}`;

/** Those keys of a view that its definition has, if they say something. */
function keysOf(view, schema) {
  return Object.fromEntries(Object.keys(schema.properties).filter((k) => view[k] !== undefined && view[k] !== null).map((k) => [k, view[k]]));
}

/** A feed has its source and its retention in objects of their own over HTTP, and plain keys in the file. */
const FEED_KEYS = ["from", "rows", "change_id_column", "ulid_feed", "ulid_table", "shard_column", "ulid_column", "shard_by", "images", "when", "columns", "trim_after", "trim_unread_after"];
const CHANGEABLE = ["comment", "sweep_group", "images", "trim_after", "trim_unread_after"];

function feedSchema(schemas) {
  const { properties, required } = schemas.NewFeedIn;
  const { source: _, retention: __, ...plain } = properties;
  const kinds = Object.fromEntries(schemas.Source.oneOf.map((s) => [s.properties.kind.enum[0], s.properties]));
  const { captured, joined, ulid } = kinds;
  const table = (text) => ({ type: "string", description: text });
  return {
    required,
    properties: {
      ...plain,
      from: table("Publish every insert, update and delete of this table, by a trigger."),
      rows: table("Find the rows of changes that the application publishes itself in this table."),
      change_id_column: joined.change_id_column,
      ...(ulid && { ulid_feed: { type: "string", description: "Read the rows of ULID transactions of this feed, a UUID." }, ulid_table: table("Their table."), shard_column: ulid.shard_column, ulid_column: ulid.ulid_column }),
      shard_by: captured.shard_by, images: captured.images, when: captured.when, columns: captured.columns,
      trim_after: schemas.Retention.properties.trim_after, trim_unread_after: schemas.Retention.properties.trim_unread_after,
    },
  };
}

function feedBody(keys) {
  const plain = Object.fromEntries(Object.entries(keys).filter(([k]) => !FEED_KEYS.includes(k)));
  const { from, rows, change_id_column, ulid_feed, ulid_table, shard_column, ulid_column, shard_by, images, when, columns, trim_after, trim_unread_after } = keys;
  if (from && rows) throw new Problem(0, "A feed is made from a table, or finds rows of one: not both.", "leave 'from' or 'rows' empty");
  const source = from ? { kind: "captured", table: from, shard_by, images, when, columns }
    : rows ? { kind: "joined", table: rows, change_id_column: change_id_column ?? "change_id", shard_by }
    : ulid_feed ? { kind: "ulid", ulid_feed, table: ulid_table, shard_column, ulid_column } : undefined;
  return { ...plain, ...(source && { source }), ...(trim_after && { retention: { trim_after, trim_unread_after } }) };
}

const KINDS = {
  feeds: {
    one: "feed", list: "Feeds", main: ["name", "from", "shards", "shard_by", "images", "comment"], schema: feedSchema,
    values: (view) => ({
      name: view.name, comment: view.comment, sweep_group: view.shards[0]?.sweep_group || undefined, images: view.source?.images,
      trim_after: view.retention?.trim_after, trim_unread_after: view.retention?.trim_unread_after,
      id: view.id, shards: view.shards.filter((s) => !s.closed).length, from: view.source?.kind === "captured" ? view.source.table : undefined,
      shard_by: view.source?.shard_by, when: view.source?.when, columns: view.source?.columns,
      rows: view.source?.kind === "joined" ? view.source.table : undefined,
    }),
    send: (name, keys) => (name === null ? tell("POST", "/api/feeds", feedBody(keys)) : tell("PATCH", of("feeds", name), {
      comment: keys.comment ?? "", sweep_group: keys.sweep_group ?? 0, ...(keys.images !== undefined && { images: keys.images }),
      retention: keys.trim_after ? { trim_after: keys.trim_after, trim_unread_after: keys.trim_unread_after } : null,
    })),
  },
  triggers: {
    // No event goes to a command.
    one: "event trigger", list: "Event triggers", hidden: ["exec"], main: ["name", "table", "webhook", "insert", "update", "delete", "when", "secret", "retries"],
    schema: (schemas) => schemas.TriggerDefinition,
    send: (name, keys) => (name === null ? tell("POST", "/api/triggers", keys) : tell("PUT", of("triggers", name), keys)),
  },
  watches: {
    one: "watch", list: "Watches", main: ["name", "table", "webhook", "secret", "batch", "from"],
    schema: (schemas) => schemas.NewWatch,
    refuse: ({ exec }) => exec && "A command runs on the machine of the instance, so it cannot be defined over HTTP.",
    send: (name, keys) => (name === null ? tell("POST", "/api/watches", keys) : tell("PUT", of("watches", name), keys)),
  },
  subscriptions: {
    one: "subscription", list: "Subscriptions", main: ["name", "feed", "to", "format", "secret", "from"],
    schema: (schemas) => ({ ...schemas.SubscriptionDefinition, required: ["name", "feed", "to"] }),
    refuse: ({ to }) => to && !/^https?:|^\$/.test(to) && "The address of a broker, a file or a command cannot be defined over HTTP.",
    send: (name, keys) => tell("PUT", of("subscriptions", keys.name), keys),
    preview: (name, { name: _, feed, to, ...rest }, replace) => ["As a command", command(["changefeed", "subscription", "create", name, "--feed", feed ?? "FEED", "--to", to ?? "URL", ...options(rest), ...(replace ? ["--replace"] : [])])],
  },
};

export const definition = {
  still: true,
  async load({ parts: [, kind, name], signal }) {
    if (!Object.hasOwn(KINDS, kind)) throw new Problem(404, "There is no such page.", "the sections are in the navigation");
    const [description, view, status] = await Promise.all([
      get("/api/openapi.json", signal), name === undefined ? null : get(of(kind, name), signal), get("/api/status", signal),
    ]);
    return { schemas: description.components.schemas, view, status };
  },

  render({ schemas, view }, { parts: [, kind, name] }) {
    const known = KINDS[kind];
    const schema = known.schema(schemas);
    const values = view && (known.values?.(view) ?? keysOf(view, schema));
    const editing = view !== null;
    const unchangeable = Object.keys(schema.properties).filter((k) => !CHANGEABLE.includes(k));
    const stays = !editing ? known.hidden ?? [] : kind === "feeds" ? unchangeable : kind === "watches" ? ["name", "table", "from"] : ["name", "exec", "in_process"];
    const title = editing ? `Edit ${known.one} ${name}` : `New ${known.one}`;

    const code = h("code", {});
    const caption = h("h3", {});
    const note = h("p", { class: "note" });
    const problem = h("p", { class: "failure-line", role: "alert" });
    const submit = h("button", { type: "submit", class: "main" }, editing ? "Save" : "Create");
    const form = fields({ schema, schemas, main: known.main, values, fixed: stays, oninput: () => look() });

    /** What does not change is part of the definition too. */
    const whole = () => {
      const kept = Object.fromEntries(stays.filter((k) => values?.[k] !== undefined && values[k] !== null && values[k] !== false).map((k) => [k, values[k]]));
      return { ...kept, ...form.typed() };
    };
    function look() {
      const keys = whole();
      const { name: called = "NAME", ...rest } = keys;
      const [how, text] = known.preview?.(called, keys, editing) ?? ["In changefeed.toml", section(kind, called, rest)];
      caption.textContent = how;
      code.textContent = text;
      const refused = known.refuse?.(keys);
      submit.disabled = Boolean(refused);
      note.textContent = refused ? `${refused} ${known.preview ? "Run the command instead." : "Put the section into changefeed.toml and run changefeed apply."}`
        : known.preview ? "The button does the same as this command." : "The button does the same as changefeed apply with this section.";
      // A file is written by somebody who may read the environment; a request is not.
      if (!refused && JSON.stringify(keys).includes('"env":')) note.textContent += " A variable that is named here must be one that the instance allows (allow_env).";
    }
    look();
    return [
      heading(title, { back: [known.list, `#/${kind}`], note: "Keys that are left empty have their default." }),
      h("form", {
        class: "definition", "data-own": "", "data-key": location.hash,
        onsubmit: async (event) => {
          event.preventDefault();
          if (submit.ariaBusy === "true") return;
          submit.ariaBusy = "true";
          problem.textContent = "";
          try {
            const keys = whole();
            await known.send(editing ? name : null, keys);
            say(`${editing ? "Saved" : "Created"} ${known.one} ${keys.name ?? name}.`);
            location.hash = `#/${kind}/${encodeURIComponent(keys.name ?? name)}`;
          } catch (error) {
            problem.textContent = explained(error);
          } finally {
            submit.ariaBusy = null;
          }
        },
      },
        h("div", { class: "columns" },
          h("div", { class: "wide-column" }, panel("Definition", {}, h("div", { class: "padded" }, form.element, problem, h("div", { class: "buttons" }, submit, h("a", { class: "button", href: editing ? `#/${kind}/${encodeURIComponent(name)}` : `#/${kind}` }, "Cancel"))))),
          h("div", { class: "narrow-column" }, panel("What it stands for", { id: "preview" }, h("div", { class: "padded" }, caption, h("pre", { tabindex: "0" }, code), note))))),
    ];
  },
};
