// Everything at a glance.

import { h, link } from "./dom.js";
import { get } from "./api.js";
import { ago, count, duration, instance, rate, upTo } from "./format.js";
import { badge, empty, figure, heading, panel } from "./parts.js";
import { chart, spark } from "./chart.js";
import { feedTable } from "./feeds.js";
import { triggerTable } from "./triggers.js";
import { watchTable } from "./watches.js";
import { instanceTable } from "./instances.js";
import { length, lines, ranges, sum } from "./series.js";
import { following } from "./tail.js";

export const overview = {
  async load({ signal }) {
    const [status, series] = await Promise.all([get("/api/status", signal), lines(signal)]);
    return { status, series };
  },

  render({ status, series }, { again, signal, state }) {
    const rates = sum(series.all("feed_rate"));
    const good = sum(series.all("trigger_success_rate"));
    const bad = sum(series.all("trigger_failure_rate"));
    const given = sum(series.all("trigger_dead_letters"));
    const total = (list, what) => list.reduce((all, one) => all + (one[what] ?? 0), 0);
    const lagging = worst(status);
    const pending = total(status.watches, "unprocessed");
    const dead = total(status.triggers, "dead_letters");
    const named = (state.feed && status.feeds.find((f) => f.name === state.feed)) || status.feeds[0];
    return [
      heading("Overview", { note: "Feeds, deliveries and watches of this database, sampled every five seconds.", aside: ranges(again) }),
      attention(status),
      h("div", { class: "figures" },
        figure("Changes", rate(total(status.feeds, "rate")), { unit: "/s", href: "#/feeds", more: `${count(status.feeds.length)} ${status.feeds.length === 1 ? "feed" : "feeds"}`, drawing: spark(rates, { length: length(), label: "Changes per second" }) }),
        figure("Longest lag", lagging ? duration(lagging.ms) : "none", { href: "#/feeds", tone: lagging?.ms > 60000 ? "warn" : null, more: lagging ? lagging.who : "everybody has read everything", drawing: spark(sum(series.all("consumer_lag")), { length: length(), tone: "calm", label: "Changes not read yet" }) }),
        figure("Deliveries", rate(total(status.triggers, "success_rate")), { unit: "/s", href: "#/triggers", more: `${rate(total(status.triggers, "failure_rate"))}/s failed`, drawing: spark(good, { length: length(), tone: "good", label: "Successful attempts per second" }) }),
        figure("Dead letters", upTo(dead), { href: "#/events?status=dead_letter", tone: dead ? "bad" : null, more: dead ? "retries used up" : "none", drawing: spark(given, { length: length(), tone: "bad", label: "Dead letters over time" }) }),
        figure("Watches behind", upTo(pending), { unit: " rows", href: "#/watches", more: `${upTo(total(status.watches, "parked"))} parked`, drawing: spark(sum(series.all("watch_unprocessed")), { length: length(), tone: "calm", label: "Rows not processed yet" }) })),
      h("div", { class: "columns" },
        h("div", { class: "wide-column" },
          panel("Feeds", {}, feedTable(status, series)),
          panel("Event triggers", { id: "triggers" },
            status.triggers.length > 0 && chart({ title: "Attempts", bars: true, length: length(), step: series.step, lines: [{ name: "succeeded", values: good, tone: "good" }, { name: "failed", values: bad, tone: "bad" }] }),
            triggerTable(status, series)),
          panel("Watches", {}, watchTable(status, series))),
        h("div", { class: "narrow-column" },
          panel("Live tail", {
            aside: status.feeds.length > 1 && h("label", {}, h("span", { class: "unseen" }, "Feed"),
              h("select", { "aria-label": "Feed of the live tail", onchange: (e) => { state.feed = e.target.value; again(); } },
                status.feeds.map((f) => h("option", { value: f.name, selected: f.name === named?.name }, f.name)))),
          }, named ? following(named.name, state, signal) : empty("There is no feed to follow yet.")),
          panel("Instances", { id: "instances" }, instanceTable(status)),
          incidents(status))),
      h("p", { class: "foot" }, `changefeed ${status.version} · answered by ${instance(status.instance)} · ${status.database.connections.open} of ${status.database.connections.most} database connections open`),
    ];
  },
};

/** Who is furthest behind: a shard that waits for its numbers, or a consumer. */
function worst(status) {
  const all = [
    ...status.feeds.flatMap((f) => f.shards.map((s) => ({ ms: s.lag_ms ?? 0, who: `${f.name}/${s.shard}` }))),
    ...status.consumers.map((c) => ({ ms: c.lag_ms, who: `${c.name} in ${c.feed}/${c.shard}` })),
  ].filter((one) => one.ms > 0);
  return all.sort((a, b) => b.ms - a.ms)[0];
}

/** What needs a person, each with the way there: what doctor has found, and what only this page knows. */
function attention(status) {
  const list = [];
  const add = (tone, href, text, advice) => list.push(h("li", { class: tone }, h("span", {}, link(href, text), advice && h("span", { class: "under" }, advice))));
  if (!status.database.reachable) add("bad", "#/instances", status.database.error ?? "The database cannot be reached.");
  if (status.sampled_at && status.age_ms > 20000) add("warn", "#/instances", `The numbers are old: they were sampled ${ago(status.age_ms)}.`);
  for (const f of status.findings ?? []) add(f.severity === "problem" ? "bad" : "warn", about(f, status), `${f.subject}: ${f.message}`, f.advice);
  if (status.incidents.length) add("bad", "#/instances", `${count(status.incidents.length)} ${status.incidents.length === 1 ? "shard has" : "shards have"} lost a writer.`);
  if (!list.length) return null;
  return h("ul", { class: "attention", "aria-label": "In need of a look", "data-key": "attention" }, list);
}

/** Where more is to be seen about a finding: the page of what it is about, or all findings. */
function about({ subject }, status) {
  const [kind, name] = subject.split(" ");
  const places = { feed: ["feeds", status.feeds], trigger: ["triggers", status.triggers], watch: ["watches", status.watches] };
  const [page, all] = places[kind] ?? [];
  const one = all?.find((x) => x.name === name);
  if (!one) return "#/instances";
  return one.dead_letters ? `#/events?trigger=${encodeURIComponent(name)}&status=dead_letter` : `#/${page}/${encodeURIComponent(name)}`;
}

function incidents(status) {
  if (!status.incidents.length) {
    return panel("Incidents", {}, h("p", { class: "note padded" }, badge("none", "good"), " No shard has lost a writer."));
  }
  return panel("Incidents", {}, h("ul", { class: "plain-list" }, status.incidents.map((i) =>
    h("li", {}, badge(`${count(i.count)} lost`, "bad"), ` shard ${i.shard} of ${i.feed}, ${ago(i.since_ms)}`))));
}
