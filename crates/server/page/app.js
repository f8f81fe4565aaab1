// The page: which view is shown, when it is refreshed, and what is around it.

import { h, morph } from "./dom.js";
import { Problem, get, token } from "./api.js";
import { failure } from "./parts.js";
import { ask } from "./token.js";
import { ago, count } from "./format.js";
import { overview } from "./overview.js";
import { feed, feeds } from "./feeds.js";
import { trigger, triggers } from "./triggers.js";
import { events } from "./events.js";
import { event } from "./event.js";
import { watch, watches } from "./watches.js";
import { subscription, subscriptions } from "./subscriptions.js";
import { instances } from "./instances.js";
import { api } from "./interface.js";
import { history } from "./history.js";
import { definition } from "./define.js";
import { showShortcuts, shortcuts } from "./keys.js";

/** As often as the server takes a sample: more would show nothing new. */
const EVERY = 5000;

const ROUTES = [
  ["", overview], ["feeds", feeds], ["feeds/*", feed], ["feeds/*/history", history], ["triggers", triggers], ["triggers/*", trigger],
  ["events", events], ["events/*", event], ["watches", watches], ["watches/*", watch],
  ["subscriptions", subscriptions], ["subscriptions/*", subscription], ["instances", instances],
  ["api", api], ["define/*", definition], ["define/*/*", definition],
].map(([path, view]) => [path.split("/").filter(Boolean), view]);

const main = document.getElementById("main");
let shown = null;

// ---------------------------------------------------------------- where we are

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(safely);
  return { parts, query: new URLSearchParams(query ?? "") };
}

function safely(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

function find({ parts }) {
  return ROUTES.find(([path]) => path.length === parts.length && path.every((part, i) => part === "*" || part === parts[i]))?.[1];
}

/** Shows what the address says. */
async function go() {
  shown?.leave.abort();
  clearTimeout(shown?.timer);
  const here = place();
  const view = find(here);
  const mine = { view, here, leave: new AbortController(), state: {}, first: true };
  shown = mine;
  navigation(here);
  if (!view) {
    main.replaceChildren(failure(new Problem(404, "There is no such page.", "the sections are in the navigation")));
    return;
  }
  await refresh(mine);
}

async function refresh(mine) {
  clearTimeout(mine.timer);
  const context = {
    name: mine.here.parts[1], parts: mine.here.parts, query: mine.here.query, state: mine.state, signal: mine.leave.signal,
    again: () => refresh(mine), mayOperate, mayAdminister,
  };
  let fresh;
  try {
    const data = await mine.view.load(context);
    if (mine !== shown) return;
    fresh = mine.view.render(data, context);
    pulse(data.status ?? known.status);
  } catch (error) {
    if (mine !== shown || error.name === "AbortError") return;
    if (error.status === 401) {
      await ask(error.message);
      await session();
      return mine === shown ? refresh(mine) : undefined;
    }
    fresh = failure(error);
    pulse(null);
  }
  const whole = h("div", { class: "view", "data-key": path() }, fresh);
  if (main.firstElementChild) morph(main.firstElementChild, whole);
  else main.append(whole);
  if (mine.first) arrived();
  mine.first = false;
  later(mine);
}

/** A person who follows a link by keyboard goes on from the new heading; one who filters, where they were. */
function arrived() {
  const heading = main.querySelector("h1");
  document.title = heading ? `${heading.textContent} · changefeed` : "changefeed";
  if (before !== null && before !== path()) {
    scrollTo(0, 0);
    heading?.focus({ preventScroll: true });
  }
  before = path();
}
let before = null;
const path = () => location.hash.split("?")[0];

function later(mine) {
  if (mine.view.still || document.hidden) return;
  mine.timer = setTimeout(() => refresh(mine), EVERY);
}

// ---------------------------------------------------------------- what is around

const SECTIONS = [
  ["Overview", "#/"], ["Feeds", "#/feeds"], ["Triggers", "#/triggers"], ["Events", "#/events"],
  ["Dead letters", "#/events?status=dead_letter"], ["Watches", "#/watches"],
  ["Subscriptions", "#/subscriptions"], ["Instances", "#/instances"], ["API", "#/api"],
];

function navigation({ parts, query } = place()) {
  const dead = parts[0] === "events" && !parts[1] && query.get("status") === "dead_letter";
  const section = parts[0] === "define" ? parts[1] : parts[0];
  const current = dead ? "#/events?status=dead_letter" : `#/${section ?? ""}`;
  const sum = (list, what) => list?.reduce((all, one) => all + one[what], 0) ?? 0;
  const counts = {
    "Dead letters": sum(known.status?.triggers, "dead_letters"),
    Watches: sum(known.status?.watches, "parked"),
    Instances: known.status?.incidents?.length ?? 0,
  };
  const fresh = h("ul", {}, SECTIONS.map(([name, href]) => h("li", {},
    h("a", { href, "aria-current": href === current ? "page" : null }, name,
      counts[name] > 0 && h("span", { class: "count", "aria-label": `${counts[name]} in need of a look` }, count(counts[name]))))));
  const nav = document.getElementById("nav");
  if (nav.firstElementChild) morph(nav.firstElementChild, fresh);
  else nav.append(fresh);
  // On a telephone the sections are one line that is wider than the screen.
  const here = nav.querySelector("[aria-current]");
  if (here && here !== nav.shownFor) {
    nav.shownFor = here;
    nav.scrollLeft += here.getBoundingClientRect().left - nav.getBoundingClientRect().left - (nav.clientWidth - here.offsetWidth) / 2;
  }
}

const known = { status: null, scopes: [] };

function pulse(status) {
  const element = document.getElementById("pulse");
  if (!status) {
    element.className = "pulse bad";
    element.textContent = "no answer";
    return;
  }
  known.status = status;
  const reachable = status.database.reachable;
  element.className = `pulse ${reachable ? "good" : "bad"}`;
  element.textContent = reachable ? `sampled ${ago(status.age_ms)}` : "database not reachable";
  banner(status);
  navigation();
}

/** On every page: changes wait for their numbers, and nobody is there to give them. */
function banner(status) {
  const held = new Set(status.leases.filter((l) => l.expires_in_ms > 0).map((l) => l.name));
  const waits = status.feeds.flatMap((f) => f.shards).filter((s) => s.pending && s.lag_ms >= UNSWEPT && !held.has(`sweep/${s.sweep_group}`));
  const groups = [...new Set(waits.map((s) => s.sweep_group))];
  const element = document.getElementById("banner");
  const text = groups.length === 0 ? "" : `Changes wait for their numbers, and nobody sweeps ${groups.length === 1 ? `group ${groups[0]}` : `groups ${groups.join(", ")}`}. Run: `;
  if (element.dataset.text === text) return;
  element.dataset.text = text;
  element.replaceChildren(...(text ? [h("p", {}, text, h("code", {}, "changefeed serve"))] : []));
}

/** Whoever sweeps without a lease gives numbers within this time, in milliseconds. */
const UNSWEPT = 2000;

function mayOperate() {
  return known.scopes.some((scope) => scope === "operate" || scope === "administer");
}

function mayAdminister() {
  return known.scopes.includes("administer");
}

async function session() {
  try {
    const { scopes, token_needed: needed } = await get("/api/session");
    known.scopes = scopes;
    document.getElementById("leave").hidden = !needed;
  } catch (error) {
    if (error.status !== 401) return;
    await ask(error.message);
    await session();
  }
}

// ---------------------------------------------------------------- light and dark

const THEMES = { auto: "system", light: "light", dark: "dark" };

function theme(name) {
  const button = document.getElementById("theme");
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  button.replaceChildren(h("span", { class: "theme-word" }, "Theme: "), THEMES[name]);
  button.onclick = () => {
    const names = Object.keys(THEMES);
    const next = names[(names.indexOf(name) + 1) % names.length];
    localStorage.setItem("changefeed.theme", next);
    theme(next);
  };
}

// ---------------------------------------------------------------- beginning

const chosen = localStorage.getItem("changefeed.theme");
theme(chosen in THEMES ? chosen : "auto");
document.getElementById("help").onclick = () => showShortcuts(SECTIONS);
document.getElementById("leave").onclick = () => {
  token.forget();
  location.reload();
};
addEventListener("hashchange", () => {
  // A skip link is no place.
  if (location.hash === "#main") return;
  go();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && shown && !shown.view?.still) refresh(shown);
});
shortcuts(SECTIONS);
navigation();
await session();
await go();
