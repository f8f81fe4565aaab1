// Who serves, who sweeps what, and what needs a person.

import { h } from "./dom.js";
import { get } from "./api.js";
import { ago, count, duration, instance } from "./format.js";
import { badge, empty, findingList, heading, panel, table } from "./parts.js";

export function instanceTable(status) {
  if (!status.instances.length) return empty("No instance has introduced itself yet.", "changefeed serve");
  return table("Instances", [{ name: "Instance", grow: true }, { name: "Sweeps" }, { name: "Seen", end: true }],
    status.instances.map((i) => ({
      key: i.name,
      cells: [
        [h("span", { class: "name", title: i.name }, instance(i.name)), h("span", { class: "under" }, `${i.roles.join(", ")} · up ${duration(i.up_ms)}`)],
        i.leases.length ? i.leases.map((l) => badge(lease(l), "calm")) : h("span", { class: "none" }, i.roles.includes("sweep") ? "nothing" : "–"),
        h("span", { class: i.seen_ms > 10000 ? "bad" : null }, ago(i.seen_ms)),
      ],
    })));
}

/** `sweep/0` is the lease of whoever sweeps group 0. */
const lease = (name) => name.replace(/^sweep\/(-?\d+)$/, "group $1");

export const instances = {
  async load({ signal }) {
    const [status, list] = await Promise.all([get("/api/status", signal), get("/api/findings", signal)]);
    return { status, findings: list.findings };
  },
  render({ status, findings }) {
    const db = status.database;
    return [
      heading("Instances", { note: "Processes that run changefeed on this database. They share the work through leases: any number does the work of one." }),
      !db.reachable && h("ul", { class: "attention" }, h("li", { class: "bad" }, db.error ?? "The database cannot be reached.")),
      panel("Who serves", {}, status.instances.length ? table("Who serves", [{ name: "Instance" }, { name: "Does", grow: true }, { name: "Holds" }, { name: "Address", hide: true }, { name: "Version", hide: true }, { name: "Up", end: true }, { name: "Seen", end: true }],
        status.instances.map((i) => ({
          key: i.name,
          cells: [[h("span", { title: i.name }, instance(i.name)), i.name === status.instance && [" ", badge("this one")]], i.roles.join(", "),
            i.leases.length ? i.leases.map((l) => badge(lease(l), "calm")) : h("span", { class: "none" }, "nothing"), i.address ?? "–", i.version, duration(i.up_ms), ago(i.seen_ms)],
        }))) : empty("No instance has introduced itself yet.", "changefeed serve")),
      panel("Who sweeps what", { id: "leases", note: "each group has one sweeper at a time" }, status.leases.length ? table("Leases", [{ name: "Lease" }, { name: "Held by", grow: true }, { name: "Hands", end: true }, { name: "Expires", end: true }],
        status.leases.map((l) => ({
          key: l.name,
          cells: [lease(l.name), h("span", { title: l.owner }, instance(l.owner)), count(l.generation), l.expires_in_ms < 0 ? badge("expired", "warn") : `in ${duration(l.expires_in_ms)}`],
        }))) : h("p", { class: "note padded" }, "No lease is held: this database numbers its changes without a sweeper, or no instance sweeps.")),
      panel("Incidents", { note: "shards whose ULID writers had to go on without one of theirs" }, status.incidents.length ? table("Incidents", [{ name: "Feed", grow: true }, { name: "Shard", end: true }, { name: "Lost", end: true }, { name: "Last", end: true }],
        status.incidents.map((i) => ({ key: `${i.feed} ${i.shard}`, cells: [h("code", {}, i.feed), i.shard, badge(count(i.count), "bad"), ago(i.since_ms)] })))
        : h("p", { class: "note padded" }, badge("none", "good"), " No shard has lost a writer.")),
      panel("What doctor says", { id: "findings", note: "the same as changefeed doctor, at most ten seconds old" }, findings.length ? findingList(findings)
        : h("p", { class: "note padded" }, badge("ok", "good"), " Nothing keeps changes from being captured.")),
      panel("Connections", { note: "of the instance that answers" }, h("p", { class: "note padded" }, `${db.connections.open} of ${db.connections.most} open, ${db.connections.idle} idle, ${db.connections.waiting} waiting.`)),
    ];
  },
};
