// The field for an API key; opens by itself where the gateway refuses.

import { key, refusals } from "./api.js";
import { byId, setText } from "./dom.js";

/** `changed` is called when another key, or none, is to be used. */
export function keyForm(changed) {
  const form = byId("key-form");
  const toggle = byId("key-toggle");
  const open = (on) => {
    form.hidden = !on;
    toggle.setAttribute("aria-expanded", `${on}`);
  };
  toggle.addEventListener("click", () => {
    open(form.hidden);
    if (!form.hidden) byId("key").focus();
  });
  refusals.addEventListener("refused", () => {
    setText(byId("key-note"), key.get() ? "The gateway does not take this key." : "This gateway wants an API key.");
    open(true);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(byId("key").value.trim());
    byId("key").value = "";
    open(false);
    changed();
  });
  byId("key-forget").addEventListener("click", () => {
    key.forget();
    open(false);
    changed();
  });
}
