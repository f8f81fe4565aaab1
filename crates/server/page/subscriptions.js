// Subscriptions: how far each has pushed, and what keeps it from going on.

import { h, link } from "./dom.js";
import { get, post } from "./api.js";
import { count } from "./format.js";
import { action, badge, define, empty, facts, findingsOf, heading, lag, panel, table } from "./parts.js";

const at = (name) => `#/subscriptions/${encodeURIComponent(name)}`;
const path = (name) => `/api/subscriptions/${encodeURIComponent(name)}`;

const TONES = { running: "good", failing: "bad", stopped: "bad", paused: "warn" };
const state = (name) => badge(name, TONES[name]);
const sum = (s, what) => s.shards.reduce((all, shard) => all + shard[what], 0);

// What keeps a shard from going on.
const why = (shard) => shard.stopped ?? (shard.failing ? `for ${Math.round(shard.failing.since_ms / 1000)} s: ${shard.failing.error}` : "");

function subscriptionTable(list) {
  if (!list.length) {
    return empty("There is no subscription yet. Push the changes of a feed to another system, in order:",
      "changefeed subscription create hook --feed orders --to https://example.com/orders");
  }
  return table("Subscriptions", [{ name: "Subscription" }, { name: "Feed" }, { name: "To", grow: true, hide: true }, { name: "State" }, { name: "Behind", end: true }, { name: "Sent", end: true }, { name: "Parked", end: true }, { name: "Lost", end: true }],
    list.map((s) => ({
      key: s.name,
      cells: [
        link(at(s.name), s.name), s.feed, h("code", {}, s.to), state(s.state), lag(s.lag_ms, s.lag_changes),
        count(sum(s, "sent")), count(sum(s, "parked")), count(sum(s, "lost")),
      ],
    })));
}

export const subscriptions = {
  async load({ signal }) {
    return (await get("/api/subscriptions", signal)).subscriptions;
  },
  render(list, { mayAdminister }) {
    return [heading("Subscriptions", { note: "A subscription pushes a feed to another system, shard by shard and in order, and keeps its position here.", aside: mayAdminister() && define("subscriptions") }), panel("All subscriptions", {}, subscriptionTable(list))];
  },
};

function buttons(s, again) {
  const paused = s.paused !== null;
  const stopped = s.shards.some((shard) => shard.stopped);
  return [
    (paused || stopped) && action("Resume", {
      key: "resume", tone: "main",
      run: async () => { await post(`${path(s.name)}/resume`); await again(); return `${s.name} goes on.`; },
    }),
    !paused && action("Pause", {
      key: "pause",
      run: async () => { await post(`${path(s.name)}/pause`, { reason: "by hand" }); await again(); return `${s.name} is paused.`; },
    }),
  ];
}

export const subscription = {
  async load({ name, signal }) {
    const [detail, status] = await Promise.all([get(path(name), signal), get("/api/status", signal)]);
    return { detail, status };
  },
  render({ detail: s, status }, { again, mayOperate, mayAdminister }) {
    return [
      heading(s.name, { back: ["Subscriptions", "#/subscriptions"], note: `Pushes the changes of feed ${s.feed}, in order.`, aside: [mayOperate() && buttons(s, again), mayAdminister() && define("subscriptions", s.name)] }),
      findingsOf(`subscription ${s.name}`, status),
      s.paused !== null && h("p", { class: "note padded" }, `Paused: ${s.paused}`),
      panel("Shards", {}, table("Shards", [{ name: "Shard" }, { name: "State" }, { name: "Cursor" }, { name: "Behind", end: true }, { name: "Sent", end: true }, { name: "Epoch", end: true, hide: true }, { name: "Why", grow: true }],
        s.shards.map((shard) => ({
          key: `${shard.shard}`,
          cells: [count(shard.shard), state(shard.state), h("code", {}, shard.cursor ?? "–"), lag(shard.lag_ms ?? 0, shard.lag_changes), count(shard.sent), count(shard.epoch), why(shard)],
        })))),
      panel("Definition", {}, facts([
        ["To", h("code", {}, s.to)], ["Format", s.format],
        ["Only rows", s.when && h("code", {}, s.when)], ["Only columns", s.columns && h("code", {}, s.columns.join(", "))], ["Batch", `${count(s.batch)} messages, collected for ${s.every}`],
        ["When the sink refuses", h("code", {}, s.on_refusal)], ["Began at", s.from], ["Timeout", s.timeout],
      ])),
    ];
  },
};
