// Pieces that every page is made of.

import { h, link } from "./dom.js";
import { Problem, sentence } from "./api.js";
import { duration } from "./format.js";

/** A heading with what belongs to it. */
export function panel(title, { id, aside, note } = {}, ...content) {
  const name = id ?? title.toLowerCase().replaceAll(" ", "-");
  return h("section", { class: "panel", "aria-labelledby": `h-${name}`, "data-key": name },
    h("header", {}, h("h2", { id: `h-${name}` }, title), note && h("p", { class: "note" }, note), aside && h("div", { class: "aside" }, aside)),
    content);
}

/**
 * A table. Columns are `{name}` with `end` for numbers, `hide` where there is no room, `draw` for
 * drawings and `grow` for what takes the rest.
 */
export function table(caption, columns, rows) {
  const shape = (column) => [column.end && "end", column.hide && "wide", column.grow && "grow", column.draw && "draw"].filter(Boolean).join(" ") || null;
  return h("div", { class: "scroll", tabindex: rows.length > 12 ? "0" : null, role: "group", "aria-label": caption },
    h("table", {},
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, columns.map((c) => h("th", { scope: "col", class: shape(c) }, c.name)))),
      h("tbody", {}, rows.map((row) => h("tr", { "data-key": row.key, class: row.tone },
        row.cells.map((cell, i) => (i === 0
          ? h("th", { scope: "row", class: shape(columns[0]) }, cell)
          : h("td", { class: shape(columns[i]), "data-name": columns[i].name }, cell))))))));
}

export const badge = (text, tone) => h("span", { class: `badge ${tone ?? ""}` }, text);

/** A number that one looks for first. */
export function figure(name, value, { unit, tone, more, drawing, href } = {}) {
  const content = [
    h("span", { class: "label" }, name),
    h("span", { class: `value ${tone ?? ""}` }, value, unit && h("small", {}, unit)),
    h("span", { class: "more" }, more ?? "\u00a0"),
    drawing,
  ];
  return href ? h("a", { class: "figure", href }, content) : h("div", { class: "figure" }, content);
}

/** What to do when there is nothing yet. */
export function empty(text, ...commands) {
  return h("div", { class: "empty" }, h("p", {}, text), commands.map((c) => h("pre", { tabindex: "0" }, h("code", {}, c))));
}

export function failure(error) {
  const known = error instanceof Problem;
  if (!known) console.error(error);
  return h("div", { class: "failure", role: "alert" },
    h("p", {}, known ? error.message : "The page made a mistake; the browser's console says more."),
    known && error.advice && h("p", { class: "note" }, sentence(error.advice)));
}

/** Facts, each with its name. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/**
 * A button that does something on the server, and says what came of it. `confirm` may ask before: it gives the question, or
 * nothing if there is no need. A disabled button would lose the focus, so one at work is only marked.
 */
export function action(text, { run, tone, label, key, confirm }) {
  return h("button", {
    type: "button", class: tone ?? null, "aria-label": label, "data-key": key,
    onclick: async (event) => {
      const button = event.currentTarget;
      if (button.ariaBusy === "true") return;
      button.ariaBusy = "true";
      try {
        const question = confirm && await confirm();
        if (!question || await asked(question)) say(await run());
      } catch (error) {
        say(explained(error), "bad");
      } finally {
        button.ariaBusy = null;
        // What it did may have made it superfluous.
        if (!button.isConnected) document.querySelector("main h1")?.focus({ preventScroll: true });
      }
    },
  }, text);
}

/** What went wrong and what to do next, in one line. */
export const explained = (error) => (error instanceof Problem ? [error.message, error.advice && sentence(error.advice)].filter(Boolean).join(" ") : String(error));

/** Asks a person; true if they agree. */
function asked({ title, text, yes }) {
  return new Promise((done) => {
    const close = (answer) => { dialog.close(); dialog.remove(); done(answer); };
    const dialog = h("dialog", { "aria-labelledby": "ask-title" }, h("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); close(true); } },
      h("h2", { id: "ask-title" }, title), h("p", {}, text),
      h("div", { class: "buttons" }, h("button", { type: "submit", class: "main" }, yes), h("button", { type: "button", onclick: () => close(false) }, "Cancel"))));
    dialog.addEventListener("cancel", () => close(false));
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A sentence that goes away by itself; one that says what went wrong stays until it is closed. */
export function say(text, tone = "good") {
  if (!text) return;
  const note = h("div", { class: `note-box ${tone}` }, h("span", {}, text),
    h("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: () => note.remove() }, "×"));
  document.getElementById("notes").append(note);
  if (tone === "good") setTimeout(() => note.remove(), 6000);
}

const TONES = { delivered: "good", success: "good", pending: "calm", dead_letter: "bad", failure: "bad", unknown: "warn", archived: "" };
const WORDS = { dead_letter: "dead letter" };

export const status = (name) => badge(WORDS[name] ?? name, TONES[name]);

export const op = (name) => h("span", { class: `op ${name.toLowerCase()}` }, name);

/** A lag: words and a tone, so that it can be read without colours. */
export function lag(ms, changes) {
  if (!changes && !ms) return h("span", { class: "lag none" }, "none");
  const tone = ms > 60000 ? "bad" : ms > 10000 ? "warn" : "";
  return h("span", { class: `lag ${tone}` }, duration(ms));
}

export const eventsOf = (trigger, status) => {
  const query = new URLSearchParams();
  if (trigger) query.set("trigger", trigger);
  if (status) query.set("status", status);
  const text = query.toString();
  return `#/events${text ? `?${text}` : ""}`;
};

/** Where one is, and the way back. */
export function heading(title, { back, aside, note } = {}) {
  return h("header", { class: "heading" },
    back && h("p", { class: "crumbs" }, link(back[1], `← ${back[0]}`)),
    h("h1", { tabindex: "-1" }, title),
    note && h("p", { class: "note" }, note),
    aside && h("div", { class: "aside" }, aside));
}

/** Where a trigger or a watch sends things. */
export function target({ webhook, exec }) {
  if (webhook) return typeof webhook === "string" ? webhook : `$${webhook.env}`;
  return exec ?? "a handler of the library";
}

/** What doctor has found about one thing, with what it means for it; nothing if all is well. */
export function findingsOf(subject, status) {
  const mine = (status?.findings ?? []).filter((f) => f.subject === subject);
  return mine.length > 0 && panel("Findings", { note: "what doctor says about it" }, findingList(mine));
}

/** What doctor has found, each with what to do about it. */
export function findingList(findings) {
  return h("ul", { class: "plain-list" }, findings.map((f) =>
    h("li", {}, badge(f.severity, { problem: "bad", warning: "warn", ok: "good" }[f.severity] ?? "calm"), " ", h("b", {}, f.subject), ` ${f.message}`, f.advice && h("span", { class: "under" }, f.advice))));
}

/** The way to the form that defines something of a kind, or changes the one of a name. */
export function define(kind, name) {
  const path = `#/define/${kind}${name ? `/${encodeURIComponent(name)}` : ""}`;
  return h("a", { class: "button", href: path }, name ? "Edit" : "New");
}
