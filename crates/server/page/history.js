// A feed's history: pages of a shard by cursor, by time, and by key. The place is part of the address, so that it can be sent
// to somebody.

import { h, link } from "./dom.js";
import { get, getExact } from "./api.js";
import { count } from "./format.js";
import { heading, op, panel, table } from "./parts.js";
import { told } from "./rows.js";

const PAGE = 50;
/** How many changes one look for a key passes at most, a page at a time. */
const PASSED = 10000;
const STEP = 500;

const address = (name, query) => `#/feeds/${encodeURIComponent(name)}/history?${new URLSearchParams(Object.fromEntries(Object.entries(query).filter(([, v]) => v !== null && v !== undefined && v !== "")))}`;
const read = (name, shard, after, limit, signal) => getExact(`/api/feeds/${encodeURIComponent(name)}/shards/${shard}/changes?after=${encodeURIComponent(after)}&limit=${limit}`, signal);

const isNumber = (cursor) => /^[0-9]+$/.test(cursor ?? "");
/** The cursor this many changes before one; numbers have no gaps. Nothing lies before the first. */
const before = (cursor, many) => String(BigInt(cursor) > BigInt(many) ? BigInt(cursor) - BigInt(many) : 0n);

/** Whether a change is of this key: a value of one of its columns, or `column=value`. */
function isOf(change, wanted) {
  const [column, value] = wanted.includes("=") ? [wanted.slice(0, wanted.indexOf("=")), wanted.slice(wanted.indexOf("=") + 1)] : [null, wanted];
  const known = change.key ?? (change.change_id ? { change_id: change.change_id } : {});
  return Object.entries(known).some(([name, v]) => (column === null || column === name) && String(v) === value);
}

/** The changes of a key, and where the look ended. */
async function search(name, shard, after, key, signal) {
  const found = [];
  let place = after;
  let passed = 0;
  let more = true;
  while (more && passed < PASSED && found.length < PAGE) {
    const page = await read(name, shard, place, STEP, signal);
    passed += page.changes.length;
    found.push(...page.changes.filter((change) => isOf(change, key)));
    place = page.next;
    more = page.more;
  }
  return { changes: found, next: place, more, passed };
}

/** What is typed as a place: `first`, `last`, a cursor; or a time of the clock here. */
function placeOf(query, detail, shard) {
  const time = query.get("time");
  if (time && !Number.isNaN(new Date(time).getTime())) return new Date(time).toISOString();
  if (query.get("after")) return query.get("after");
  const last = detail.shards.find((s) => String(s.shard) === shard)?.last;
  // Without a place it shows the newest page.
  return isNumber(last) && !query.get("key") ? before(last, PAGE) : "first";
}

export const history = {
  still: true,
  async load({ name, query, signal }) {
    const [detail, status] = await Promise.all([get(`/api/feeds/${encodeURIComponent(name)}`, signal), get("/api/status", signal)]);
    const shard = query.get("shard") ?? String(detail.shards.find((s) => !s.closed)?.shard ?? 0);
    const key = query.get("key")?.trim();
    let place = placeOf(query, detail, shard);
    const look = (from) => (key ? search(name, shard, from, key, signal) : read(name, shard, from, PAGE, signal));
    let page;
    try {
      page = await look(place);
    } catch (error) {
      // What was trimmed is not shown as an error to somebody who only turns pages.
      if (error.status !== 410 || query.get("after") && !query.get("turned")) throw error;
      place = "first";
      page = await look(place);
    }
    return { detail, status, shard, key, place, page };
  },

  render({ detail, shard, key, place, page }, { query }) {
    const name = detail.name;
    const first = page.changes[0]?.cursor;
    const older = !key && isNumber(first ?? page.next) && place !== "first" ? before(first ?? page.next, first ? PAGE + 1 : PAGE) : null;
    const go = (after, more) => address(name, { shard, after, key, ...more });
    return [
      heading(`History of ${name}`, { back: [name, `#/feeds/${encodeURIComponent(name)}`], note: "What the feed says, in its order, from any place that is kept." }),
      places(name, detail, shard, query),
      panel("Changes", { note: key ? `of ${key}; ${count(page.passed)} looked at` : page.changes.length ? `${page.changes[0].cursor} to ${page.changes.at(-1).cursor}` : null },
        page.changes.length ? table("Changes", [{ name: "Cursor" }, { name: "Change", hide: true }, { name: "What", grow: true }],
          page.changes.map((c) => ({ key: c.cursor, cells: [h("code", {}, c.cursor), h("code", { class: "when" }, c.change_id ?? "–"), h("span", { class: "whole" }, c.op && [op(c.op), " "], told(c))] })))
          : h("p", { class: "note padded" }, key ? "No change of this key was found up to here." : "There is no change after this place."),
        h("div", { class: "buttons padded" },
          h("a", { class: "button", href: go("first") }, "Oldest"),
          older !== null && h("a", { class: "button", href: go(older, { turned: 1 }) }, "Older"),
          page.more && h("a", { class: "button", href: go(page.next) }, key ? "Look further" : "Newer"),
          h("a", { class: "button", href: address(name, { shard, key: null }) }, "Newest"))),
      h("p", { class: "note" }, "By time means by when a change got its number; a page begins up to a second earlier. ", link("#/api", "The same over HTTP")),
    ];
  },
};

function places(name, detail, shard, query) {
  const apply = (form) => {
    const text = (field) => form.elements[field].value.trim();
    location.hash = address(name, { shard: text("shard"), key: text("key"), time: text("time"), after: text("time") ? null : text("after") });
  };
  const field = (label, input) => h("label", { class: "field" }, h("span", {}, label), input);
  return h("form", { class: "filters", role: "search", "aria-label": "Which place", "data-key": "place", onsubmit: (e) => { e.preventDefault(); apply(e.currentTarget); } },
    field("Shard", h("select", { name: "shard", onchange: (e) => apply(e.target.form) }, detail.shards.map((s) => h("option", { value: s.shard, selected: String(s.shard) === shard }, `${s.shard}${s.closed ? " (closed)" : ""}`)))),
    field("After cursor", h("input", { name: "after", size: 20, placeholder: "first, last or a cursor", value: query.get("turned") ? "" : query.get("after") ?? "" })),
    field("At time", h("input", { class: "moment", name: "time", type: "datetime-local", step: 1, value: query.get("time") ?? "" })),
    field("Key", h("input", { name: "key", size: 12, placeholder: "42 or id=42", value: query.get("key") ?? "" })),
    h("div", { class: "field end-field" }, h("button", { type: "submit" }, "Show")));
}
