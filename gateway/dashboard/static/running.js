// The table of requests that run now.

import { byId, el, put, table } from "./dom.js";
import { age, count } from "./format.js";

const COLUMNS = [{ title: "request" }, { title: "model" }, { title: "state" }, { title: "age", number: true },
  { title: "prompt", number: true }, { title: "tokens so far", number: true }];
const ID_SHOWN = 18;

export function showRunning(snapshot) {
  const { running, running_total: total } = snapshot;
  const rows = running.map((r) => [
    el("code", { title: r.request_id }, shortened(r.request_id)),
    r.model,
    r.choices > 1 ? `${r.state}, ${r.choices} choices` : r.state,
    age(r.age_s), count(r.prompt_tokens), count(r.completion_tokens)]);
  const more = total > running.length ? `The oldest ${running.length} of ${count(total)}.` : null;
  put(byId("running"), rows.length
    ? table(more, COLUMNS, rows)
    : el("p", { class: "empty" }, "Nothing runs at this gateway now."));
}

export function shortened(id) {
  return id.length > ID_SHOWN ? `${id.slice(0, ID_SHOWN - 1)}…` : id;
}
