// The log of events, with filters that are part of the address: a view can be sent to somebody.

import { h, link } from "./dom.js";
import { Problem, get, getExact, post } from "./api.js";
import { count, time } from "./format.js";
import { action, badge, empty, heading, op, panel, status, table } from "./parts.js";
import { change, line } from "./rows.js";

const PAGE = 50;

/** `failed` shows why the newest attempt failed, and what it was answered. */
export function eventTable(events, { hideTrigger, failed } = {}) {
  if (!events.length) return h("p", { class: "note padded" }, "There is no event.");
  return table("Events", [
    { name: "Captured" }, ...(hideTrigger ? [] : [{ name: "Trigger", hide: true }]), { name: "Change" }, { name: "Row", grow: true },
    ...(failed ? [{ name: "Answered", end: true }, { name: "Error", hide: true }] : [{ name: "Status" }]), { name: "Tries", end: true, hide: true }],
    events.map((e) => ({
      key: e.id,
      cells: [
        h("a", { href: `#/events/${e.id}`, class: "when" }, time(e.created_at)),
        ...(hideTrigger ? [] : [link(`#/triggers/${encodeURIComponent(e.trigger)}`, e.trigger)]),
        op(e.op), [h("span", { class: "one-line" }, e.old !== null && e.new !== null ? change(e.old, e.new) : line(e.new ?? e.old)), failed && h("span", { class: "under narrow" }, e.last_error)],
        ...(failed ? [e.last_status ? badge(e.last_status, "bad") : "–", h("span", { class: "reason", title: e.last_error }, e.last_error ?? "–")] : [status(e.status)]), count(e.tries),
      ],
    })));
}

/** Delivers everything again that a filter names, after a person has seen how much that is. */
export function redelivery(filter, again) {
  const many = (n, more) => `${more ? "more than " : ""}${count(n)} ${n === 1 && !more ? "event" : "events"}`;
  return {
    confirm: async () => {
      const { found, more } = await counted(filter);
      if (found === 0) throw new Problem(409, "There is nothing to deliver again.");
      return {
        title: `Deliver ${many(found, more)} again?`,
        text: "Each is sent from its first attempt on, with all of its retries. Receivers see the same event id as before.", yes: `Redeliver ${many(found, more)}`,
      };
    },
    run: async () => {
      const { events } = await post("/api/events/redeliver", filter);
      await again();
      return `${many(events)} ${events === 1 ? "is" : "are"} delivered again.`;
    },
  };
}

/** How many events a filter names; counting stops after a few pages. */
async function counted(filter) {
  let found = 0;
  let before = null;
  do {
    const query = new URLSearchParams({ ...filter, limit: MOST, ...(before && { before }) });
    const page = await get(`/api/events?${query}`);
    found += page.events.length;
    before = page.before;
  } while (before && found < 5 * MOST);
  return { found, more: before !== null };
}

/** As many as the server gives at a time. */
const MOST = 1000;

const FIELDS = ["trigger", "status", "http_status", "error", "since", "until"];

/** What the filters of the address say, as the server understands it. */
function asked(query) {
  const wanted = new URLSearchParams();
  for (const field of FIELDS) {
    const text = query.get(field)?.trim();
    if (!text) continue;
    const local = field === "since" || field === "until";
    const at = local ? new Date(text) : null;
    wanted.set(field, local && !Number.isNaN(at.getTime()) ? at.toISOString() : text);
  }
  return wanted;
}

/** The same as the body of a request. */
function body(query) {
  const filter = Object.fromEntries(asked(query));
  if (filter.http_status) filter.http_status = Number(filter.http_status);
  return filter;
}

export const events = {
  async load({ query, state, signal }) {
    const wanted = asked(query);
    wanted.set("limit", PAGE);
    const more = state.pages ?? [];
    const [first, list, now] = await Promise.all([
      getExact(`/api/events?${wanted}`, signal), get("/api/triggers", signal), get("/api/status", signal),
    ]);
    return { first, more, triggers: list.triggers.map((t) => t.name), wanted, status: now };
  },

  render({ first, more, triggers, wanted }, { query, state, again, mayOperate }) {
    const dead = query.get("status") === "dead_letter";
    // New events push the older ones on; what was loaded before must not appear twice.
    const all = [...new Map([...first.events, ...more.flatMap((page) => page.events)].map((e) => [e.id, e])).values()];
    const before = more.length ? more.at(-1).before : first.before;
    const filtered = FIELDS.some((f) => query.get(f));
    return [
      heading(dead ? "Dead letters" : "Events", {
        note: dead ? "Events that were given up: their retries are used up, or an answer was final. They stay until they are delivered again or cleaned up."
          : "Every captured change, and what became of it.",
        aside: mayOperate() && dead && all.length > 0 && action("Redeliver all of these", {
          key: "redeliver-all", tone: "main", ...redelivery(body(query), async () => { state.pages = []; await again(); }),
        }),
      }),
      filters(query, triggers),
      panel(dead ? "Dead letters" : "Log", { id: "log", note: `newest first${filtered ? ", filtered" : ""}` },
        all.length ? eventTable(all, { failed: dead }) : filtered
          ? h("div", { class: "empty" }, h("p", {}, dead ? "There is no dead letter." : "No event is like that."), h("p", {}, link("#/events", "Show all events")))
          : empty("There is no event yet. They come from changes of tables that an event trigger looks at:", "changefeed trigger create orders --table orders --webhook https://example.com/hooks/orders"),
        before && h("div", { class: "buttons padded" }, action("Older events", {
          key: "older",
          run: async () => {
            wanted.set("before", before);
            state.pages = [...(state.pages ?? []), await getExact(`/api/events?${wanted}`)];
            await again();
          },
        }))),
    ];
  },
};

function filters(query, triggers) {
  const apply = (form) => {
    const next = new URLSearchParams();
    for (const field of FIELDS) {
      const text = form.elements[field].value.trim();
      if (text) next.set(field, text);
    }
    location.hash = `#/events${next.size ? `?${next}` : ""}`;
  };
  const choose = (e) => apply(e.target.form);
  const option = (name, chosen, text = name) => h("option", { value: name, selected: name === chosen }, text);
  const field = (name, label, input) => h("label", { class: "field" }, h("span", {}, label), input);
  const chosen = (name) => query.get(name) ?? "";
  return h("form", { class: "filters", role: "search", "aria-label": "Which events", "data-key": "filters", onsubmit: (e) => { e.preventDefault(); apply(e.currentTarget); } },
    field("trigger", "Trigger", h("select", { name: "trigger", onchange: choose }, option("", chosen("trigger"), "all"), triggers.map((t) => option(t, chosen("trigger"))))),
    field("status", "Status", h("select", { name: "status", onchange: choose }, option("", chosen("status"), "all"), option("pending", chosen("status")), option("delivered", chosen("status")), option("dead_letter", chosen("status"), "dead letter"), option("archived", chosen("status")))),
    field("http_status", "Answered", h("input", { name: "http_status", inputmode: "numeric", pattern: "[0-9]{3}", size: 5, placeholder: "503", value: chosen("http_status"), onchange: choose })),
    field("error", "Error contains", h("input", { name: "error", size: 12, value: chosen("error"), onchange: choose })),
    field("since", "Since", h("input", { class: "moment", name: "since", type: "datetime-local", step: 1, value: chosen("since"), onchange: choose })),
    field("until", "Until", h("input", { class: "moment", name: "until", type: "datetime-local", step: 1, value: chosen("until"), onchange: choose })),
    h("div", { class: "field end-field" }, h("button", { type: "submit" }, "Filter"), FIELDS.some((f) => query.get(f)) && h("a", { class: "button quiet", href: "#/events" }, "Clear")));
}
