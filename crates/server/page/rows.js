// Rows: on one line, and old and new side by side with the difference marked.

import { h } from "./dom.js";
import { json, value } from "./format.js";

const isRow = (row) => row !== null && typeof row === "object" && !Array.isArray(row);

/** A row on one line; what does not fit is cut off by the style. */
export function line(row) {
  if (row === null || row === undefined) return h("span", { class: "gone" }, "the row is gone");
  if (!isRow(row)) return h("code", {}, value(row));
  return h("span", { class: "pairs" }, Object.entries(row).map(([name, v]) =>
    h("span", { class: "pair" }, h("span", { class: "column" }, name), h("span", { class: kind(v) }, value(v)))));
}

/** What has changed, on one line: `status placed → paid`. */
export function change(old, fresh) {
  if (!isRow(old) || !isRow(fresh)) return line(fresh ?? old);
  const names = columns(old, fresh).filter((name) => differs(old, fresh, name));
  const same = columns(old, fresh).filter((name) => !differs(old, fresh, name)).slice(0, 1);
  return h("span", { class: "pairs" },
    same.map((name) => h("span", { class: "pair" }, h("span", { class: "column" }, name), h("span", { class: kind(fresh[name]) }, value(fresh[name])))),
    names.map((name) => h("span", { class: "pair" }, h("span", { class: "column" }, name),
      h("del", {}, text(old, name)), h("span", { "aria-label": "became" }, " → "), h("ins", {}, text(fresh, name)))));
}

/** What is known of the row: its images, the row as it is now, or the key of one that is gone. */
export function told({ op, key, row, old, new: fresh }) {
  if (old !== undefined) return change(old, fresh);
  if (row === null && key) return [line(key), op !== "delete" && h("span", { class: "gone" }, " (gone by now)")];
  return op === "truncate" ? h("span", { class: "gone" }, "all rows of the shard") : line(row);
}

const columns = (old, fresh) => [...new Set([...Object.keys(old ?? {}), ...Object.keys(fresh ?? {})])];
const has = (row, name) => isRow(row) && Object.hasOwn(row, name);
const text = (row, name) => (has(row, name) ? value(row[name]) : "");
const differs = (old, fresh, name) => has(old, name) !== has(fresh, name) || json(old[name], 0) !== json(fresh[name], 0);
const kind = (v) => (v === null ? "null" : typeof v === "string" ? "text" : "plain");

/** Old and new side by side. */
export function compare(old, fresh) {
  if ((old !== null && !isRow(old)) || (fresh !== null && !isRow(fresh))) {
    return h("div", { class: "pair-of-values" }, cell("old", old), cell("new", fresh));
  }
  const both = old !== null && fresh !== null;
  const names = columns(old, fresh);
  if (!names.length) return h("p", { class: "note" }, "The event carries no row.");
  return h("div", { class: "scroll" }, h("table", { class: "compare" },
    h("caption", { class: "unseen" }, "The row before and after"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Column"), old !== null && h("th", { scope: "col" }, "Old"), fresh !== null && h("th", { scope: "col" }, "New"))),
    h("tbody", {}, names.map((name) => {
      const changed = both && differs(old, fresh, name);
      return h("tr", { class: changed ? "changed" : null },
        h("th", { scope: "row" }, name, changed && h("span", { class: "unseen" }, " (changed)")),
        old !== null && h("td", {}, changed ? h("del", {}, block(old, name)) : block(old, name)),
        fresh !== null && h("td", {}, changed ? h("ins", {}, block(fresh, name)) : block(fresh, name)));
    }))));
}

function block(row, name) {
  if (!has(row, name)) return h("span", { class: "null" }, "absent");
  const v = row[name];
  return h("span", { class: kind(v) }, isRow(v) || Array.isArray(v) ? json(v) : value(v));
}

function cell(name, v) {
  return h("div", {}, h("h3", {}, name), h("pre", { tabindex: "0" }, json(v)));
}
