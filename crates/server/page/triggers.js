// Event triggers: how deliveries go, and sending one by hand.

import { h, link } from "./dom.js";
import { get, getExact, post } from "./api.js";
import { count, duration, rate, upTo } from "./format.js";
import { action, badge, define, empty, eventsOf, explained, facts, findingsOf, heading, panel, say, table, target } from "./parts.js";
import { chart, spark } from "./chart.js";
import { length, lines, ranges } from "./series.js";
import { eventTable, redelivery } from "./events.js";

const at = (name) => `#/triggers/${encodeURIComponent(name)}`;

export function triggerTable(status, series) {
  if (!status.sampled_at) return null;
  if (!status.triggers.length) {
    return empty("There is no event trigger yet. Post every change of a table to a webhook:",
      "changefeed trigger create orders --table orders --webhook https://example.com/hooks/orders");
  }
  return table("Event triggers", [{ name: "Trigger" }, { name: "Succeeded", hide: true, draw: true }, { name: "Failed", hide: true, draw: true }, { name: "Success", end: true }, { name: "Pending", end: true }, { name: "Dead letters", end: true }],
    status.triggers.map((t) => {
      const good = series.of("trigger_success_rate", t.name);
      const bad = series.of("trigger_failure_rate", t.name);
      // One scale for both, or a single failure would look like an outage.
      const top = Math.max(0.1, ...good.map((v) => v ?? 0), ...bad.map((v) => v ?? 0));
      return {
        key: t.name,
        cells: [
          [link(at(t.name), t.name), t.paused !== null && [" ", badge("paused", "warn")]],
          spark(good, { length: length(), top, tone: "good", label: `Successful attempts per second of ${t.name}` }),
          spark(bad, { length: length(), top, tone: "bad", label: `Failed attempts per second of ${t.name}` }),
          share(t), link(eventsOf(t.name, "pending"), upTo(t.pending)),
          t.dead_letters ? link(eventsOf(t.name, "dead_letter"), badge(upTo(t.dead_letters), "bad")) : "0",
        ],
      };
    }));
}

function share({ success, failure }) {
  const all = success + failure;
  return all ? `${((success / all) * 100).toFixed(success === all ? 0 : 1)} %` : "–";
}

export const triggers = {
  async load({ signal }) {
    const [status, series, list] = await Promise.all([get("/api/status", signal), lines(signal), get("/api/triggers", signal)]);
    return { status, series, list: list.triggers };
  },
  render({ status, series, list }, { again, mayAdminister }) {
    return [
      heading("Event triggers", { note: "An event trigger records every change of a table in the writer's transaction, and delivers it to a webhook with retries and a log of every attempt.", aside: [ranges(again), mayAdminister() && define("triggers")] }),
      list.length > 0 && h("div", { class: "grid-of-charts" }, list.slice(0, 12).map((t) => panel(t.name, { id: `chart-${t.name}` }, deliveries(t.name, series)))),
      panel("All triggers", {}, triggerTable(status, series)),
      list.length > 0 && panel("Where they go", {}, table("Where events go", [{ name: "Trigger" }, { name: "Table" }, { name: "On" }, { name: "To", grow: true }],
        list.map((t) => ({ key: t.name, cells: [link(at(t.name), t.name), t.table, on(t), h("code", {}, target(t))] })))),
    ];
  },
};

function deliveries(name, series) {
  return chart({ title: "Attempts", bars: true, length: length(), step: series.step, lines: [
    { name: "succeeded", values: series.of("trigger_success_rate", name), tone: "good" },
    { name: "failed", values: series.of("trigger_failure_rate", name), tone: "bad" },
  ] });
}


function on(t) {
  return [t.insert && "insert", t.update && (t.update === true ? "update" : `update of ${t.update.join(", ")}`), t.delete && "delete", t.manual && "by hand"].filter(Boolean).join(", ");
}

export const trigger = {
  async load({ name, signal }) {
    const path = `/api/triggers/${encodeURIComponent(name)}`;
    const [detail, status, series, recent] = await Promise.all([
      get(path, signal), get("/api/status", signal), lines(signal), getExact(`/api/events?trigger=${encodeURIComponent(name)}&limit=10`, signal),
    ]);
    return { detail, status, series, recent: recent.events };
  },
  render({ detail: t, status, series, recent }, { again, mayOperate, mayAdminister }) {
    const path = `/api/triggers/${encodeURIComponent(t.name)}`;
    const state = t.state;
    const sample = status.triggers.find((x) => x.name === t.name);
    const act = (text, verb, said, body) => action(text, { key: verb, run: async () => { await post(`${path}/${verb}`, body); await again(); return said; } });
    return [
      heading(t.name, {
        back: ["Event triggers", "#/triggers"], note: `Changes of ${t.table} become events, which are delivered until they succeed or are given up.`,
        aside: [
          ranges(again),
          mayOperate() && (t.paused === null ? act("Pause", "pause", `Trigger ${t.name} is paused.`, { reason: "paused on the dashboard" }) : act("Resume", "resume", `Trigger ${t.name} goes on.`)),
          mayAdminister() && define("triggers", t.name),
        ],
      }),
      t.paused !== null && h("ul", { class: "attention" }, h("li", { class: "warn" }, `Nothing is delivered: ${t.paused}`)),
      findingsOf(`trigger ${t.name}`, status),
      h("div", { class: "columns" },
        h("div", { class: "wide-column" },
          panel("Deliveries", {}, deliveries(t.name, series),
            chart({ title: "Pending", unit: "", format: count, length: length(), step: series.step, lines: [{ name: "events", values: series.of("trigger_pending", t.name), tone: "calm" }] })),
          panel("Newest events", { aside: link(eventsOf(t.name), "All events") }, eventTable(recent, { hideTrigger: true }))),
        h("div", { class: "narrow-column" },
          panel("State", {}, facts([
            ["Pending", link(eventsOf(t.name, "pending"), upTo(state?.pending ?? 0))], ["In flight", count(state?.in_flight ?? 0)],
            ["Dead letters", link(eventsOf(t.name, "dead_letter"), upTo(state?.dead_letters ?? 0))], ["Overdue", state?.overdue_ms ? duration(state.overdue_ms) : "nothing"],
            ["Succeeded", `${count(sample?.success ?? 0)} attempts`], ["Failed", `${count(sample?.failure ?? 0)} attempts`], ["Now", `${rate(sample?.success_rate)}/s, ${rate(sample?.failure_rate)}/s failed`],
          ]), mayOperate() && state?.dead_letters > 0 && h("div", { class: "buttons padded" }, action("Redeliver all dead letters", { key: "redeliver-all", ...redelivery({ trigger: t.name, status: "dead_letter" }, again) }))),
          mayOperate() && t.manual && invoke(t, path, again),
          panel("Definition", {}, facts([
            ["Table", t.table], ["On", on(t)], ["When", t.when && h("code", {}, t.when)], ["To", h("code", {}, target(t))],
            ["Retries", `${t.retries}, after ${t.interval}${t.backoff ? `, doubling up to ${t.backoff}` : ""}`],
            ["Timeout", t.timeout], ["Format", t.format], ["In order", t.in_order ? `by ${t.in_order === true ? "primary key" : t.in_order}` : null],
            ["Feed", t.feed && link(`#/feeds/${encodeURIComponent(t.feed)}`, t.feed)], ["Columns", t.payload?.join(", ")],
          ])))),
    ];
  },
};

/** Sends an event by hand. */
function invoke(t, path, again) {
  return panel("Invoke by hand", { id: "invoke" }, h("form", {
    class: "padded invoke", "data-key": "invoke-form",
    onsubmit: async (event) => {
      event.preventDefault();
      const text = event.currentTarget.querySelector("textarea");
      try {
        JSON.parse(text.value);
      } catch {
        say("The payload is not JSON.", "bad");
        text.focus();
        return;
      }
      try {
        const made = await post(`${path}/invoke`, `{"payload": ${text.value}}`);
        say(`Event ${made.event_id} will be delivered.`);
        location.hash = `#/events/${made.event_id}`;
      } catch (error) {
        say(explained(error), "bad");
      }
      await again();
    },
  },
    h("label", { for: "payload" }, "Payload, as JSON"),
    h("textarea", { id: "payload", rows: 4, spellcheck: "false" }, '{\n  "hello": "from the dashboard"\n}'),
    h("div", { class: "buttons" }, h("button", { type: "submit" }, "Invoke"))));
}
