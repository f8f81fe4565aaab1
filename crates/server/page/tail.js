// A live tail: changes as they happen. It looks after itself, and rests while nobody can see it.

import { h } from "./dom.js";
import { follow } from "./api.js";
import { change, line } from "./rows.js";
import { op } from "./parts.js";

const KEPT = 100;

/** What is known of the row: its images, the row as it is now, or the key of one that is gone. */
function told({ op, key, row, old, new: fresh }) {
  if (old !== undefined) return change(old, fresh);
  if (row === null && key) return [line(key), op !== "delete" && h("span", { class: "gone" }, " (gone by now)")];
  return op === "truncate" ? h("span", { class: "gone" }, "all rows of the shard") : line(row);
}

/** The tail of a feed, until `signal` says stop. */
function tail(feed, signal, { rows = KEPT } = {}) {
  const body = h("tbody", {});
  const state = h("span", { class: "live-state", role: "status" }, "connecting");
  const pause = h("button", { type: "button", class: "quiet", "aria-pressed": "false" }, "Pause");
  const nothing = h("p", { class: "nothing" }, "Waiting for the next change…");
  const list = h("div", { class: "scroll tail-rows", tabindex: "0", role: "log", "aria-live": "off", "aria-label": `Changes of ${feed} as they happen` },
    h("table", {},
      h("caption", { class: "unseen" }, `Changes of ${feed} as they happen, newest first`),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Shard"), h("th", { scope: "col" }, "Cursor"), h("th", { scope: "col", class: "grow" }, "Change"))),
      body),
    nothing);
  let paused = false;
  let queue = [];
  let drawing = false;

  const draw = () => {
    drawing = false;
    if (paused) return;
    // However many came at once, only those that stay are made.
    for (const { shard, cursor, ...rest } of queue.splice(0).slice(-rows)) {
      const what = [rest.op && [op(rest.op), " "], told(rest)];
      const row = h("tr", { class: "fresh" }, h("td", { class: "shard" }, shard), h("td", { class: "cursor" }, cursor), h("td", { class: "grow" }, what));
      body.prepend(row);
    }
    while (body.children.length > rows) body.lastChild.remove();
    nothing.hidden = body.children.length > 0;
  };
  const show = (text, tone) => {
    state.textContent = text;
    state.className = `live-state ${tone}`;
  };
  pause.onclick = () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(paused));
    if (!paused) draw();
    show(paused ? "paused" : "live", paused ? "warn" : "good");
  };

  let connection = null;
  const connect = () => {
    if (document.hidden || connection || signal.aborted) return;
    connection = new AbortController();
    follow(`/api/feeds/${encodeURIComponent(feed)}/changes`, connection.signal, {
      onchange: (one) => {
        queue.push(one);
        if (queue.length > rows) queue = queue.slice(-rows);
        if (!drawing) { drawing = true; requestAnimationFrame(draw); }
      },
      onstate: (now, error) => {
        if (paused) return;
        show(now === "live" ? "live" : error ? error.message : "connecting", now === "live" ? "good" : "warn");
      },
    });
  };
  const rest = () => {
    connection?.abort();
    connection = null;
  };
  const look = () => (document.hidden ? rest() : connect());
  document.addEventListener("visibilitychange", look, { signal });
  signal.addEventListener("abort", rest);
  connect();

  return h("div", { class: "tail", "data-own": "", "data-key": `tail-${feed}` }, h("div", { class: "tail-head" }, state, pause), list);
}

/** One tail at a time; it goes on while the page around it is refreshed. */
export function following(feed, state, signal) {
  if (state.tailing === feed) return h("div", { class: "tail", "data-own": "", "data-key": `tail-${feed}` });
  state.stop?.abort();
  state.stop = new AbortController();
  state.tailing = feed;
  signal.addEventListener("abort", () => state.stop.abort());
  return tail(feed, state.stop.signal);
}
