// Puts the page together.

import { byId, el, put, setText } from "./dom.js";
import { keyForm } from "./key-form.js";
import { Live } from "./live.js";
import { Panels } from "./panels.js";
import { Playground } from "./playground.js";
import { Requests } from "./requests.js";
import { showRunning } from "./running.js";
import { themeToggle } from "./theme.js";
import { speculationLines, VerifierList } from "./verifiers.js";

const live = new Live();
const panels = new Panels();
const playground = new Playground();
const requests = new Requests();
const verifiers = new VerifierList();
const verifierChoice = byId("verifier-choice");
const windowChoice = byId("window-choice");

// What comes faster is drawn together.
const DRAW_MS = 900;
let drawn = -Infinity;
let planned = null;

function plan() {
  planned ??= setTimeout(draw, Math.max(0, drawn + DRAW_MS - performance.now()));
}

function draw() {
  clearTimeout(planned);
  planned = null;
  if (!live.snapshot || document.hidden) return;
  drawn = performance.now();
  const { snapshot } = live;
  offerVerifiers(snapshot.verifiers.map((v) => v.address));
  panels.update(live, verifierChoice.value, Number(windowChoice.value));
  tell(speculationLines(snapshot.verifiers));
  showRunning(snapshot);
  verifiers.update(snapshot.verifiers);
  playground.offer(snapshot.verifiers);
}

let announced = null;

/** Shows whether each verifier speculates; a change is said aloud, the figures' flow is not. */
function tell(lines) {
  const text = lines.map((line) => line.textContent).join(". ") || "No verifier is known to this gateway yet.";
  const states = text.replace(/ \([^)]*\)/g, "");
  put(byId("states"), lines.length ? lines : el("li", {}, text));
  if (announced !== null && states !== announced) setText(byId("announcer"), states);
  announced = states;
}

function offerVerifiers(addresses) {
  const offered = [...verifierChoice.options].slice(1).map((option) => option.value);
  if (offered.join() === addresses.join()) return;
  const chosen = verifierChoice.value;
  put(verifierChoice, el("option", { value: "" }, "all"), addresses.map((a) => el("option", { value: a }, a)));
  verifierChoice.value = addresses.includes(chosen) ? chosen : "";
}

live.addEventListener("snapshot", plan);
live.addEventListener("state", () => {
  byId("connection").dataset.state = live.state.name;
  setText(byId("connection"), live.state.text);
});
for (const choice of [verifierChoice, windowChoice]) choice.addEventListener("change", draw);
document.addEventListener("visibilitychange", draw);
byId("numbers-toggle").addEventListener("click", (event) => {
  const on = event.currentTarget.getAttribute("aria-pressed") !== "true";
  event.currentTarget.setAttribute("aria-pressed", `${on}`);
  panels.showNumbers(on);
});
themeToggle(byId("theme-toggle"));
keyForm(() => { live.again(); requests.refresh(); });
live.run();
requests.run();
