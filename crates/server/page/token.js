// With tokens defined, a person is asked for one, once per tab.

import { h } from "./dom.js";
import { get, token } from "./api.js";

let asking = null;

/** Asks until there is a token that the server knows. */
export function ask(reason) {
  asking ??= new Promise((done) => {
    const input = h("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, placeholder: "cft_…" });
    const error = h("p", { class: "failure-line", role: "alert" }, token.get() ? reason : null);
    const form = h("form", {
      method: "dialog",
      onsubmit: async (event) => {
        event.preventDefault();
        error.textContent = "";
        token.set(input.value.trim());
        try {
          await get("/api/session");
        } catch (problem) {
          token.forget();
          error.textContent = problem.message;
          input.select();
          return;
        }
        dialog.close();
        dialog.remove();
        asking = null;
        done();
      },
    },
      h("h2", { id: "token-title" }, "This server needs a token"),
      h("p", {}, "It is kept for this tab only. Make one with"),
      h("pre", {}, h("code", {}, "changefeed token create me --scope operate")),
      h("label", { for: "token" }, "Token"), input, error,
      h("div", { class: "buttons" }, h("button", { type: "submit", class: "main" }, "Continue")));
    const dialog = h("dialog", { class: "token", "aria-labelledby": "token-title" }, form);
    // There is nothing to see without one.
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
  return asking;
}
