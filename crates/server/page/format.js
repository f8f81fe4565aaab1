// Numbers, durations and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** A number that JavaScript would round, as it was written. */
export class Exact {
  constructor(source) { this.source = source; }
  toString() { return this.source; }
}

export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));

/** Counting stops somewhere; that is said. */
export const upTo = (n) => (n >= 100000 ? "100,000+" : count(n));

/** Something per second. */
export function rate(n) {
  if (n === null || n === undefined) return "–";
  if (n === 0) return "0";
  if (n < 0.1) return n.toFixed(2);
  if (n < 100) return n.toFixed(1);
  return whole.format(n);
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 120000) return `${Math.round(ms / 1000)} s`;
  if (ms < 7200000) return `${Math.round(ms / 60000)} min`;
  if (ms < 172800000) return `${Math.round(ms / 3600000)} h`;
  return `${Math.round(ms / 86400000)} days`;
}

export const ago = (ms) => (ms === null || ms === undefined ? "never" : ms < 1000 ? "just now" : `${duration(ms)} ago`);

const two = (n) => String(n).padStart(2, "0");

/** The time of day here; with its date if it is not of today. */
export function time(text) {
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return text;
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  if (at.toDateString() === new Date().toDateString()) return clock;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock}`;
}

/** A value of a row on one line. */
export function value(v) {
  if (v === null) return "null";
  if (typeof v === "string") return v;
  if (v instanceof Exact) return v.source;
  if (typeof v === "object") return json(v, 0);
  return String(v);
}

// Not to be guessed by whoever writes rows.
const MARK = `exact ${Math.random().toString(36).slice(2)} `;
const MARKED = new RegExp(`"${MARK}([^"]*)"`, "g");

/** JSON again, with numbers as they were written. */
export function json(v, indent = 2) {
  const text = JSON.stringify(v, (_, inner) => (inner instanceof Exact ? MARK + inner.source : inner), indent);
  return (text ?? "").replace(MARKED, "$1");
}

/** The short form of an instance's name: what is behind the host is for machines. */
export function instance(name) {
  const parts = name.split("/");
  return parts.length === 3 ? `${parts[0]} · ${parts[1]}` : name;
}
