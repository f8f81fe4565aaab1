// Feeds: how fast, how far behind, who reads.

import { h, link } from "./dom.js";
import { get } from "./api.js";
import { ago, count, duration, rate, upTo } from "./format.js";
import { badge, define, empty, facts, findingsOf, heading, lag, panel, table } from "./parts.js";
import { chart, spark } from "./chart.js";
import { length, lines, ranges } from "./series.js";
import { following } from "./tail.js";

const at = (name) => `#/feeds/${encodeURIComponent(name)}`;

export function feedTable(status, series) {
  if (!status.sampled_at) return h("p", { class: "note padded" }, "The first sample is being taken.");
  if (!status.feeds.length) {
    return empty("There is no feed yet. Make one from a table, without changing the application:",
      "changefeed feed create orders --from orders --shard-by customer_id --shards 4");
  }
  return table("Feeds", [{ name: "Feed" }, { name: "Rate", hide: true, draw: true }, { name: "Per second", end: true }, { name: "Lag per shard" }, { name: "Consumers" }],
    status.feeds.map((f) => ({
      key: f.name,
      cells: [
        [link(at(f.name), f.name), deaf(f, status) && [" ", badge("problem", "bad")]],
        spark(series.of("feed_rate", f.name), { length: length(), label: `Changes per second of ${f.name}` }),
        rate(f.rate),
        h("span", { class: "shards" }, f.shards.map((s) => h("span", { class: `shard-lag ${tone(s)}`, title: `shard ${s.shard}: ${upTo(s.pending)} waiting, newest ${ago(s.since_ms)}` },
          h("span", { class: "which" }, s.shard), s.pending ? duration(s.lag_ms) : "0"))),
        readers(status.consumers.filter((c) => c.feed === f.name)),
      ],
    })));
}

/** Whether doctor has found that its changes are not captured, or cannot be read. */
const deaf = (feed, status) => (status.findings ?? []).some((f) => f.severity === "problem" && f.subject === `feed ${feed.name}`);

const tone = (shard) => (!shard.pending ? "good" : shard.lag_ms > 10000 ? "bad" : shard.lag_ms > 2000 ? "warn" : "good");

/** Each consumer once, with the worst of its shards. */
function readers(consumers) {
  const names = [...new Set(consumers.map((c) => c.name))];
  if (!names.length) return h("span", { class: "none" }, "none");
  return h("span", { class: "readers" }, names.map((name) => {
    const mine = consumers.filter((c) => c.name === name);
    const behind = mine.reduce((sum, c) => sum + c.lag_changes, 0);
    const oldest = Math.max(...mine.map((c) => c.lag_ms));
    return h("span", { class: "reader" }, name, " ", mine.some((c) => c.expired) ? badge("expired", "bad")
      : h("span", { class: `lag ${behind && oldest > 60000 ? "warn" : ""}` }, behind ? `${count(behind)} behind, ${duration(oldest)}` : "up to date"));
  }));
}

export const feeds = {
  async load({ signal }) {
    const [status, series] = await Promise.all([get("/api/status", signal), lines(signal)]);
    return { status, series };
  },
  render({ status, series }, { again, mayAdminister }) {
    const all = series.all("feed_rate").slice(0, 6);
    return [
      heading("Feeds", { note: "A feed is a log of changes in a fixed order. Readers page through it by cursor and miss nothing, whatever committed in parallel.", aside: [ranges(again), mayAdminister() && define("feeds")] }),
      all.length > 0 && panel("Changes", {}, chart({ title: "Changes per second", length: length(), step: series.step, lines: all.map((l, i) => ({ name: l.name, values: l.values, tone: `tone-${i}` })) })),
      panel("All feeds", {}, feedTable(status, series)),
      consumers(status),
    ];
  },
};

function consumers(status) {
  if (!status.consumers.length) {
    return panel("Consumers", {}, empty("No cursor is stored yet. A reader that continues where it stopped:", "changefeed feed tail orders --consumer me"));
  }
  return panel("Consumers", {}, consumerTable(status.consumers));
}

function consumerTable(list) {
  const most = Math.max(1, ...list.map((c) => c.lag_changes));
  return table("Consumers", [{ name: "Consumer" }, { name: "Shard" }, { name: "Behind", draw: true }, { name: "Changes", end: true }, { name: "Lag", end: true }, { name: "Cursor", hide: true, end: true }, { name: "Stored", hide: true, end: true }],
    list.map((c) => ({
      key: `${c.name} ${c.feed} ${c.shard}`,
      cells: [c.name, h("span", {}, link(at(c.feed), c.feed), `/${c.shard}`),
        h("meter", { min: 0, max: most, value: c.lag_changes, "aria-label": `${count(c.lag_changes)} changes behind` }),
        c.expired ? badge("expired", "bad") : count(c.lag_changes), lag(c.lag_ms, c.lag_changes), h("code", {}, c.cursor), ago(c.idle_ms)],
    })));
}

export const feed = {
  async load({ name, signal }) {
    const [detail, status, series] = await Promise.all([
      get(`/api/feeds/${encodeURIComponent(name)}`, signal), get("/api/status", signal), lines(signal),
    ]);
    return { detail, status, series };
  },
  render({ detail, status, series }, { again, state, signal, mayAdminister }) {
    const sample = status.feeds.find((f) => f.name === detail.name);
    return [
      heading(detail.name, { back: ["Feeds", "#/feeds"], note: detail.comment ?? "A log of changes: each shard is in order and has no gaps.", aside: [ranges(again), h("a", { class: "button", href: `${at(detail.name)}/history` }, "History"), mayAdminister() && define("feeds", detail.name)] }),
      findingsOf(`feed ${detail.name}`, status),
      h("div", { class: "columns" },
        h("div", { class: "wide-column" },
          panel("Traffic", {},
            chart({ title: "Changes", length: length(), step: series.step, lines: [{ name: "changes", values: series.of("feed_rate", detail.name), tone: "accent" }], empty: detail.source?.kind === "ulid" ? "Changes of feeds of ULIDs have no numbers, so there is no rate." : null }),
            chart({ title: "Waiting for a number", unit: "", format: count, length: length(), step: series.step, lines: [{ name: "waiting", values: series.of("feed_pending", detail.name), tone: "calm" }] })),
          panel("Shards", {}, table("Shards", [{ name: "Shard" }, { name: "Per second", end: true }, { name: "Waiting", end: true }, { name: "Lag", end: true }, { name: "Newest", end: true }, { name: "Last cursor", end: true, hide: true }, { name: "Sweep group", end: true, hide: true }],
            detail.shards.map((s) => {
              const seen = sample?.shards.find((x) => x.shard === s.shard);
              return { key: String(s.shard), cells: [s.closed ? h("span", { title: "the feed goes on in other shards: `changefeed feed reshard`" }, s.shard, h("span", { class: "note" }, " closed")) : s.shard, rate(seen?.rate), upTo(s.pending), lag(seen?.lag_ms, s.pending), ago(s.since_ms), h("code", {}, s.last), s.sweep_group] };
            }))),
          panel("Consumers", {}, detail.consumers.length ? [
            consumerTable(detail.consumers),
          ] : empty("No cursor of this feed is stored yet.", `changefeed feed tail ${detail.name} --consumer me`)),
          panel("Definition", {}, facts([["Number", detail.id], ["Source", source(detail.source)], ["Sharded by", detail.source?.shard_by ?? detail.source?.shard_column], ["Kept", kept(detail.retention)]]))),
        h("div", { class: "narrow-column" }, panel("Live tail", {}, following(detail.name, state, signal)))),
    ];
  },
};

function kept(retention) {
  if (!retention) return null;
  const { trim_after: read, trim_unread_after: unread } = retention;
  return `${read}, what a consumer has not read ${unread ?? "for ever"}`;
}

function source(from) {
  if (!from) return "the application writes it";
  if (from.kind === "captured") return `table ${from.table}, captured by triggers`;
  if (from.kind === "joined") return `table ${from.table}, joined by ${from.change_id_column}`;
  return `table ${from.table}, by ULIDs`;
}
