// Drawings of numbers over time, made by hand. A chart is drawn in a box that is stretched to whatever
// width there is, so that nothing has to be computed when a window changes.

import { h, s } from "./dom.js";
import { count, duration, rate } from "./format.js";

const HEIGHT = 100;
const POINTS = 60;

/** The newest `length` values, in at most `POINTS` means: calm enough to see a trend. */
function points(values, length) {
  const recent = values.slice(-length);
  const padded = [...Array(Math.max(0, length - recent.length)).fill(null), ...recent];
  const size = Math.max(1, Math.ceil(length / POINTS));
  const means = [];
  for (let end = padded.length; end > 0; end -= size) {
    const known = padded.slice(Math.max(0, end - size), end).filter((v) => v !== null);
    means.unshift(known.length ? known.reduce((a, b) => a + b, 0) / known.length : null);
  }
  return means;
}

/** A round number that nothing is above. */
function ceiling(highest) {
  if (!(highest > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(highest));
  return [1, 2, 3, 4, 5, 6, 8, 10].map((n) => n * power).find((n) => n >= highest * 0.999) ?? highest;
}

/** Lines of known values; a gap is a gap, but for a sample or two that came late. */
function runs(values, x, y) {
  const all = [];
  let before = -9;
  values.forEach((value, i) => {
    if (value === null) return;
    if (i - before > 3) all.push([]);
    before = i;
    all.at(-1).push([x(i), y(value)]);
  });
  return all;
}

const path = (run) => run.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");

function filled(run, floor) {
  return `${path(run)}L${run.at(-1)[0].toFixed(2)} ${floor}L${run[0][0].toFixed(2)} ${floor}Z`;
}

/** A small line without axes, for a cell of a table. */
export function spark(values, { tone = "accent", length = 180, label, top }) {
  const shown = points(values ?? [], length);
  const highest = top ?? ceiling(Math.max(0, ...shown.map((v) => v ?? 0)));
  const x = (i) => (i / Math.max(1, shown.length - 1)) * 100;
  const y = (v) => 23 - (v / highest) * 21;
  const lines = runs(shown, x, y);
  return s("svg", { class: `spark ${tone}`, viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("line", { class: "floor", x1: 0, x2: 100, y1: 23.5, y2: 23.5 }),
    lines.map((run) => [
      run.length > 1 && s("path", { class: "fill", d: filled(run, 23.5) }),
      s("path", { class: "line", d: run.length > 1 ? path(run) : `${path(run)}h0.01` }),
    ]));
}

/**
 * A chart with axes. `lines` are `{name, values, tone}`; `bars` stacks them instead of drawing lines.
 */
export function chart({ title, lines, length, step, unit = "/s", format = rate, bars = false, empty }) {
  const shown = lines.map((line) => ({ ...line, points: points(line.values ?? [], length) }));
  const size = shown[0]?.points.length ?? 0;
  const sums = Array.from({ length: size }, (_, i) =>
    bars ? shown.reduce((sum, l) => sum + (l.points[i] ?? 0), 0) : Math.max(0, ...shown.map((l) => l.points[i] ?? 0)));
  const known = shown.some((l) => l.points.some((v) => v !== null));
  const top = ceiling(Math.max(0, ...sums));
  const y = (v) => HEIGHT - (v / top) * HEIGHT;
  const readout = h("output", { class: "readout", "aria-hidden": "true" });
  const cursor = s("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
  const grid = [0, 0.5, 1].map((part) => s("line", { class: "grid", x1: 0, x2: 100, y1: HEIGHT * part, y2: HEIGHT * part }));
  const drawn = bars ? stacked(shown, size, top) : shown.map((line) => {
    const x = (i) => (i / Math.max(1, size - 1)) * 100;
    return runs(line.points, x, y).map((run) => s("g", { class: line.tone },
      run.length > 1 && s("path", { class: "fill", d: filled(run, HEIGHT) }),
      s("path", { class: "line", d: run.length > 1 ? path(run) : `${path(run)}h0.01` })));
  });
  const span = step * length;
  const said = shown.map((l) => `${l.name} now ${format(last(l.points))}${unit}, at most ${format(Math.max(0, ...l.points.map((v) => v ?? 0)))}${unit}`);
  return h("figure", { class: "chart" },
    h("figcaption", {}, h("span", { class: "name" }, title), legend(shown, unit, format), readout),
    h("div", { class: "plot" },
      h("div", { class: "scale", "aria-hidden": "true" }, h("span", {}, `${Number.isInteger(top) ? count(top) : format(top)}${unit}`), h("span", {}, "0")),
      s("svg", {
        viewBox: `0 0 100 ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
        "aria-label": `${title} over the last ${duration(span)}: ${said.join("; ")}`,
        onpointermove: (event) => {
          const box = event.currentTarget.getBoundingClientRect();
          const part = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
          const i = Math.min(size - 1, bars ? Math.floor(part * size) : Math.round(part * (size - 1)));
          const at = bars ? ((i + 0.5) / size) * 100 : (i / Math.max(1, size - 1)) * 100;
          cursorOf(event).setAttribute("x1", at);
          cursorOf(event).setAttribute("x2", at);
          cursorOf(event).setAttribute("visibility", "visible");
          const back = ((size - 1 - i) / Math.max(1, size - 1)) * span;
          readoutOf(event).textContent = `${back < step ? "now" : `${duration(back)} ago`}  ${shown.map((l) => `${l.name} ${format(l.points[i])}`).join("  ")}`;
        },
        onpointerleave: (event) => {
          cursorOf(event).setAttribute("visibility", "hidden");
          readoutOf(event).textContent = "";
        },
      }, grid, drawn, cursor),
      !known && h("p", { class: "nothing" }, empty ?? "No numbers yet; the first come within ten seconds."),
      h("div", { class: "times", "aria-hidden": "true" }, h("span", {}, `${duration(span)} ago`), h("span", {}, "now"))));
}

// Found by where they are, because a refresh keeps the elements and not what was closed over.
const cursorOf = (event) => event.currentTarget.querySelector(".cursor");
const readoutOf = (event) => event.currentTarget.closest("figure").querySelector(".readout");

function stacked(shown, size, top) {
  const width = 100 / size;
  const columns = [];
  for (let i = 0; i < size; i += 1) {
    let floor = HEIGHT;
    for (const line of shown) {
      const tall = ((line.points[i] ?? 0) / top) * HEIGHT;
      if (tall <= 0) continue;
      floor -= tall;
      columns.push(s("rect", { class: `bar ${line.tone}`, x: (i * width + width * 0.12).toFixed(2), width: (width * 0.76).toFixed(2), y: floor.toFixed(2), height: tall.toFixed(2) }));
    }
  }
  return columns;
}

const last = (values) => values.findLast((v) => v !== null) ?? null;

function legend(shown, unit, format) {
  return h("ul", { class: "legend" }, shown.map((line) =>
    h("li", { class: line.tone }, h("span", { class: "swatch", "aria-hidden": "true" }), line.name, " ",
      h("b", {}, `${format(last(line.points))}${unit}`))));
}

/** Parts of a whole, side by side: what is pending, leased, parked. */
export function parts(values, label) {
  const sum = values.reduce((a, v) => a + v.value, 0);
  return h("div", { class: "split", role: "img", "aria-label": label },
    values.filter((v) => v.value > 0).map((v) =>
      h("span", { class: v.tone, style: { "flex-grow": String(Math.max(v.value / sum, 0.04)) } })));
}
