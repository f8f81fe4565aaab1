// Rates and backlogs over time, and how far charts look back.

import { h } from "./dom.js";
import { get } from "./api.js";

const RANGES = { "5 min": 60, "15 min": 180, "1 hour": 720 };
let range = "5 min";
export const length = () => RANGES[range];

/** How far charts look back; one choice for all of them. */
export function ranges(again) {
  return h("div", { class: "choice", role: "group", "aria-label": "How far charts look back" }, Object.keys(RANGES).map((name) =>
    h("button", { type: "button", "aria-pressed": String(name === range), onclick: () => { range = name; again(); } }, name)));
}

/** Rates and backlogs by kind and name. */
export async function lines(signal, query = "") {
  const answer = await get(`/api/series?last=${length()}${query}`, signal);
  const found = new Map(answer.series.map((line) => [`${line.kind} ${line.name}`, line.values]));
  return { step: answer.step_ms, of: (kind, name) => found.get(`${kind} ${name}`) ?? [], all: (kind) => answer.series.filter((l) => l.kind === kind) };
}

/** Several lines as one. */
export function sum(series) {
  const size = Math.max(0, ...series.map((l) => l.values.length));
  return Array.from({ length: size }, (_, i) => {
    const known = series.map((l) => l.values[i - size + l.values.length] ?? null).filter((v) => v !== null);
    return known.length ? known.reduce((a, b) => a + b, 0) : null;
  });
}
