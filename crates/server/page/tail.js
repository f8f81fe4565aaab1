// A live tail: changes as they happen. It looks after itself, and rests while nobody can see it.

import { h } from "./dom.js";
import { follow, get } from "./api.js";
import { told } from "./rows.js";
import { op } from "./parts.js";

const KEPT = 100;

/** A place in each shard from which the last changes are told; none if there is no such place. */
async function recent(feed, signal) {
  try {
    const { shards } = await get(`/api/feeds/${encodeURIComponent(feed)}`, signal);
    const open = shards.filter((s) => !s.closed);
    const each = BigInt(Math.max(1, Math.ceil(BEFORE / open.length)));
    const ulids = new Date(Date.now() - 300000).toISOString();
    const places = shards.map((s) => `${s.shard}=${s.closed ? "last" : /^[0-9]+$/.test(s.last) ? BigInt(s.last) - each : ulids}`).join(",");
    // A place that was trimmed is refused.
    const possible = await Promise.all(open.map((s) => {
      const after = places.split(",").find((p) => p.startsWith(`${s.shard}=`)).split("=")[1];
      return get(`/api/feeds/${encodeURIComponent(feed)}/shards/${s.shard}/changes?limit=1&after=${encodeURIComponent(after)}`, signal).then(() => true, () => false);
    }));
    return possible.every(Boolean) ? places : null;
  } catch {
    return null;
  }
}

/** As many changes are shown at once. */
const BEFORE = 20;

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
  let begun = false;
  const connect = async () => {
    if (document.hidden || connection || signal.aborted) return;
    const mine = new AbortController();
    connection = mine;
    // What was seen before is there; only the first time begins a little earlier.
    const after = begun ? null : await recent(feed, mine.signal);
    if (mine.signal.aborted) return;
    begun = true;
    follow(`/api/feeds/${encodeURIComponent(feed)}/changes${after ? `?after=${encodeURIComponent(after)}` : ""}`, mine.signal, {
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
