// One event: what changed, and every attempt to tell of it.

import { h, link } from "./dom.js";
import { exact, get, getExact, post } from "./api.js";
import { count, duration, json, time } from "./format.js";
import { action, badge, facts, heading, op, panel, status } from "./parts.js";
import { compare } from "./rows.js";

export const event = {
  async load({ name, signal }) {
    const [e, status] = await Promise.all([getExact(`/api/events/${encodeURIComponent(name)}`, signal), get("/api/status", signal)]);
    return { e, status };
  },

  render({ e }, { again, mayOperate }) {
    return [
      heading([op(e.op), ` ${e.table}`], {
        back: ["Events", "#/events"], note: "One captured change, and every attempt to deliver it.",
        aside: mayOperate() && action("Redeliver", {
          key: "redeliver", tone: "main",
          run: async () => {
            await post(`/api/events/${encodeURIComponent(e.id)}/redeliver`);
            await again();
            return "The event is delivered again.";
          },
        }),
      }),
      panel("Event", {}, facts([
        ["Status", status(e.status)], ["Trigger", link(`#/triggers/${encodeURIComponent(e.trigger)}`, e.trigger)],
        ["Captured", h("time", { datetime: e.created_at }, time(e.created_at))], ["Attempts", attemptsOf(e)],
        ["Next attempt", e.next_retry_at && time(e.next_retry_at)], ["With", e.locked_by],
        ["Event", h("code", {}, e.id)], ["Change", h("code", {}, e.change_id)],
        ["Writer", e.session_variables && h("code", {}, json(e.session_variables, 0))], ["Trace", e.trace_context && h("code", {}, json(e.trace_context, 0))],
      ])),
      panel(e.op === "UPDATE" ? "What changed" : e.op === "MANUAL" ? "Payload" : "Row", { id: "rows" }, compare(e.old, e.new)),
      panel("Attempts", {}, e.attempts.length ? [e.attempts.length > 1 && timeline(e.attempts), h("ol", { class: "attempts" }, e.attempts.toReversed().map((a, i) => attempt(a, e.attempts.length - i, e.attempts.length)))]
        : h("p", { class: "note padded" }, e.status === "pending" ? "No attempt yet; a running `changefeed serve` or `changefeed deliver` takes it within moments." : "No attempt is in the log.")),
    ];
  },
};

/** The log has every attempt; `tries` counts those since it was last delivered again. */
function attemptsOf({ attempts, tries }) {
  const all = attempts.filter((a) => !a.late).length;
  return all > tries ? `${count(all)}, of which ${count(tries)} since it was delivered again` : count(tries);
}

/** All attempts, as long as they took. */
function timeline(attempts) {
  const longest = Math.max(1, ...attempts.map((a) => a.duration_ms));
  return h("ul", { class: "timeline", "aria-label": "How long the attempts took" }, attempts.map((a, i) =>
    h("li", { class: tone(a), title: `${i + 1}: ${a.status ?? a.outcome}, ${duration(a.duration_ms)}` },
      h("span", { style: { height: `${Math.max(18, (a.duration_ms / longest) * 100)}%` } }), h("span", { class: "unseen" }, `${a.outcome}, ${duration(a.duration_ms)}`))));
}

const tone = (a) => (a.outcome === "success" ? "good" : a.outcome === "failure" ? "bad" : "warn");

function attempt(a, place, last) {
  return h("li", { "data-key": `${place} ${a.created_at}` }, h("details", { open: place === last },
    h("summary", {},
      h("span", { class: "number" }, `#${place}`), badge(a.status ?? a.outcome, tone(a)),
      h("span", { class: "what" }, a.error ?? (a.outcome === "success" ? "accepted" : a.outcome)),
      a.late && badge("late", "warn"),
      h("span", { class: "took" }, `${duration(a.duration_ms)} · ${time(a.created_at)}`)),
    h("div", { class: "exchange" }, message("Request", a.request), message("Response", a.response))));
}

/** One side of an exchange: headers as a table, a body as it came, in order if it is JSON. */
function message(name, m) {
  if (m === null || typeof m !== "object") return h("section", {}, h("h3", {}, name), h("p", { class: "note" }, name === "Response" ? "There was no answer." : "Nothing was sent."));
  const { headers, body, payload, data, ...rest } = m;
  const content = body ?? payload ?? data;
  return h("section", {}, h("h3", {}, name),
    h("dl", { class: "headers" }, Object.entries(rest).map(([k, v]) => pair(k, v)), pairs(headers).map(([k, v]) => pair(k, v))),
    content !== undefined && content !== null && h("pre", { tabindex: "0", "aria-label": `Body of the ${name.toLowerCase()}` }, pretty(content)));
}

const pair = (name, v) => h("div", {}, h("dt", {}, name), h("dd", {}, typeof v === "object" && v !== null ? json(v, 0) : String(v)));

function pairs(headers) {
  if (Array.isArray(headers)) return headers.map((x) => (Array.isArray(x) ? x : [x.name, x.value]));
  return Object.entries(headers ?? {});
}

function pretty(content) {
  if (typeof content !== "string") return json(content);
  try {
    // Only if nothing but spaces is added: a body is evidence.
    const parsed = exact(content);
    const same = typeof parsed === "object" && parsed !== null && json(parsed, 0) === content;
    return same ? json(parsed) : content;
  } catch {
    return content;
  }
}
