// Watches: rows that wait, leased rows, parked rows.

import { h, link } from "./dom.js";
import { get, getExact, post } from "./api.js";
import { ago, count, upTo } from "./format.js";
import { action, badge, define, empty, facts, findingsOf, heading, panel, table, target } from "./parts.js";
import { chart, parts, spark } from "./chart.js";
import { length, lines, ranges } from "./series.js";
import { line } from "./rows.js";

const at = (name) => `#/watches/${encodeURIComponent(name)}`;

/** Whether `changefeed serve` runs it. */
const served = (w) => w.batch !== undefined;

/** What waits is what is not processed and nobody holds. */
const waiting = (w) => Math.max(0, w.unprocessed - w.leased);

function split(w) {
  return parts([{ value: waiting(w), tone: "calm" }, { value: w.leased, tone: "accent" }, { value: w.parked, tone: "bad" }],
    `${count(waiting(w))} pending, ${count(w.leased)} leased, ${count(w.parked)} parked`);
}

export function watchTable(status, series) {
  if (!status.sampled_at) return null;
  if (!status.watches.length) {
    return empty("There is no watch yet. Hand the changed rows of a table to a webhook, in batches:",
      "changefeed watch create mail --table orders --webhook https://example.com/mail");
  }
  return table("Watches", [{ name: "Watch" }, { name: "Backlog", hide: true, draw: true }, { name: "Now", draw: true }, { name: "Pending", end: true }, { name: "Leased", end: true }, { name: "Parked", end: true }],
    status.watches.map((w) => ({
      key: w.name,
      cells: [
        link(at(w.name), w.name), spark(series.of("watch_unprocessed", w.name), { length: length(), tone: "calm", label: `Rows of ${w.name} not processed yet` }), split(w),
        upTo(waiting(w)), upTo(w.leased), w.parked ? link(at(w.name), badge(upTo(w.parked), "bad")) : "0",
      ],
    })));
}

export const watches = {
  async load({ signal }) {
    const [status, series] = await Promise.all([get("/api/status", signal), lines(signal)]);
    return { status, series };
  },
  render({ status, series }, { again, mayAdminister }) {
    return [
      heading("Watches", { note: "A watch hands the changed rows of a table to a function, in leased batches and as they are now: several changes of a row arrive as one.", aside: [ranges(again), mayAdminister() && define("watches")] }),
      panel("All watches", {}, watchTable(status, series)),
      status.watches.length > 0 && panel("How they are doing", {}, table("How watches are doing",
        [{ name: "Watch" }, { name: "Table" }, { name: "Batches", end: true }, { name: "Failed", end: true }, { name: "Looked", end: true }, { name: "Good for", end: true }, { name: "Last error", grow: true, hide: true }],
        status.watches.map((w) => ({ key: w.name, cells: [link(at(w.name), w.name), w.table, count(w.success), count(w.failure), ago(w.idle_ms), `${count(w.suggested_workers)} ${w.suggested_workers === 1 ? "worker" : "workers"}`, w.last_error ?? "none"] })))),
    ];
  },
};

/** A round of attempts for one row; a newer change of the row has already given it one. */
function retryOne(w, { key, version }, again) {
  return action("Retry", {
    key: `retry-${version}`, label: `Retry row ${JSON.stringify(key)}`,
    run: async () => {
      const { retried } = await post(`/api/watches/${encodeURIComponent(w.name)}/retry`, { version: String(version) });
      await again();
      return retried ? "The row gets another round." : "The row is not parked any more.";
    },
  });
}

export const watch = {
  async load({ name, signal }) {
    const [detail, status, series] = await Promise.all([getExact(`/api/watches/${encodeURIComponent(name)}?parked=100`, signal), get("/api/status", signal), lines(signal)]);
    return { detail, status, series };
  },
  render({ detail: w, status, series }, { again, mayOperate, mayAdminister }) {
    return [
      heading(w.name, {
        back: ["Watches", "#/watches"], note: `Hands changed rows of ${w.table} to ${served(w) ? target(w) : "a program that uses the library"}.`,
        aside: [ranges(again), mayOperate() && w.parked > 0 && action("Retry parked rows", {
          key: "retry", tone: "main",
          confirm: () => w.parked > 1 && { title: `Retry ${upTo(w.parked)} parked rows?`, text: "Each gets another round of attempts.", yes: "Retry them" },
          run: async () => {
            const { retried } = await post(`/api/watches/${encodeURIComponent(w.name)}/retry`);
            await again();
            return `${count(retried)} ${retried === 1 ? "row gets" : "rows get"} another round.`;
          },
        }), served(w) && mayAdminister() && define("watches", w.name)],
      }),
      findingsOf(`watch ${w.name}`, status),
      h("div", { class: "columns" },
        h("div", { class: "wide-column" },
          panel("Backlog", {},
            h("div", { class: "padded backlog" }, split(w), h("ul", { class: "legend" },
              h("li", { class: "calm" }, h("span", { class: "swatch" }), "pending ", h("b", {}, upTo(waiting(w)))),
              h("li", { class: "accent" }, h("span", { class: "swatch" }), "leased ", h("b", {}, upTo(w.leased))),
              h("li", { class: "bad" }, h("span", { class: "swatch" }), "parked ", h("b", {}, upTo(w.parked))))),
            chart({ title: "Not processed yet", unit: "", format: count, length: length(), step: series.step, lines: [{ name: "rows", values: series.of("watch_unprocessed", w.name), tone: "calm" }] })),
          panel("Parked rows", { note: w.parked > w.parked_changes.length ? `the oldest ${w.parked_changes.length} of ${upTo(w.parked)}` : null },
            w.parked_changes.length ? table("Parked rows", [{ name: "Row" }, { name: "Change" }, { name: "Error", grow: true }, { name: "Attempts", end: true, hide: true }, { name: "Parked", end: true, hide: true }, ...(mayOperate() ? [{ name: "Again" }] : [])],
              w.parked_changes.map((p) => ({
                key: `${p.version}`,
                cells: [
                  line(p.key), h("span", { class: `op ${p.operation}` }, p.operation.toUpperCase()), h("span", { class: "reason", title: p.error }, p.error ?? ""), count(p.attempts), ago(p.since_ms),
                  ...(mayOperate() ? [retryOne(w, p, again)] : []),
                ],
              })))
              : h("p", { class: "note padded" }, "No row is parked."))),
        h("div", { class: "narrow-column" },
          panel("State", {}, facts([["Last error", w.last_error ?? "none"], ["Last looked", ago(w.idle_ms)], ["Good for", `${count(w.suggested_workers)} ${w.suggested_workers === 1 ? "worker" : "workers"}`], ["Processed up to", h("code", {}, w.last_sync_version)]])),
          panel("Definition", {}, facts([
            ["Run by", served(w) ? "changefeed serve" : "a program that uses the library"], ["To", served(w) && h("code", {}, target(w))],
            ...(served(w) ? [["Batch", `${count(w.batch)} rows`], ["Operations", w.on.length ? w.on.join(", ") : "all"], ["When", w.when && h("code", {}, w.when)], ["Columns", w.columns.length ? w.columns.join(", ") : "all"],
              ["With", [w.with_version && "versions", w.with_columns && "changed columns", w.with_before && "rows as they were"].filter(Boolean).join(", ") || null],
              ["Looks", w.polling_interval === "0s" ? "when something changes" : `every ${w.polling_interval} at most`], ["Waits after a failure", w.retry_interval], ["Lease", `${w.lease}, renewed every ${w.renewal}`], ["Timeout", w.timeout], ["Attempts", count(w.attempts)]] : []),
            ["Backlog in", h("code", {}, w.leases_table)],
          ])))),
    ];
  },
};
