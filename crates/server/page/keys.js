// Keyboard shortcuts: one letter after `g` goes to a section. They can be turned off, for people whose tools type letters
// by themselves.

import { h } from "./dom.js";

const KEY = "changefeed.shortcuts";
const on = () => localStorage.getItem(KEY) !== "off";

/** The letter of each section. */
const LETTERS = { Overview: "o", Feeds: "f", Triggers: "t", Events: "e", "Dead letters": "d", Watches: "w", Subscriptions: "s", Instances: "i", API: "a" };

const OTHERS = [["/", "to the first filter or field"], ["n", "define something new, or edit what is shown"], ["h", "the history of the feed that is shown"], ["?", "this list"]];

/** Listens on the whole page, but never while a person types. */
export function shortcuts(sections) {
  let after = -Infinity;
  addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, select, textarea, [contenteditable], dialog");
    if (typing || !on() || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const leading = event.timeStamp - after < 1500;
    after = -Infinity;
    if (leading) {
      const href = sections.find(([name]) => LETTERS[name] === event.key)?.[1];
      if (href) location.hash = href;
      return;
    }
    if (event.key === "g") after = event.timeStamp;
    else if (event.key === "?") showShortcuts(sections);
    else if (event.key === "n") document.querySelector('main .heading a[href^="#/define/"]')?.click();
    else if (event.key === "h") document.querySelector('main .heading a[href$="/history"]')?.click();
    else if (event.key === "/") {
      const field = document.querySelector("main form input, main form select");
      if (!field) return;
      event.preventDefault();
      field.focus();
    }
  });
}

export function showShortcuts(sections) {
  if (document.querySelector("dialog")) return;
  const keys = [...sections.map(([name]) => [["g", LETTERS[name]], name]), ...OTHERS.map(([key, what]) => [[key], what])];
  const dialog = h("dialog", { "aria-labelledby": "keys-title" }, h("form", { method: "dialog" },
    h("h2", { id: "keys-title" }, "Keyboard shortcuts"),
    h("dl", { class: "keys" }, keys.map(([parts, what]) => h("div", {}, h("dt", {}, parts.map((part) => h("kbd", {}, part))), h("dd", {}, what)))),
    h("label", { class: "check" }, h("input", { type: "checkbox", checked: on(), onchange: (event) => localStorage.setItem(KEY, event.target.checked ? "on" : "off") }), "Shortcuts are on"),
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "main" }, "Close"))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
