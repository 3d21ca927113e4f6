// The experiment page: one store, one file a panel, each part with its address.

import { ApiError, base, element, say } from "./api.js";
import { Store } from "./store.js";
import * as curves from "./panels/curves.js";
import * as difference from "./panels/difference.js";
import * as evaluating from "./panels/evaluating.js";
import * as grafts from "./panels/grafts.js";
import * as head from "./panels/head.js";
import * as lanes from "./panels/lanes.js";
import * as papers from "./panels/papers.js";
import * as records from "./panels/records.js";

const root = document.getElementById("experiment");
const store = new Store(root.dataset.id);
const TABS = ["overview", "curves", "runs", "events", "log", "specification", "report"];

head.mount(store);
evaluating.mount(store);
head.differs(store);
difference.mount(store);
curves.mount(store);
lanes.mount(store);
grafts.mount(store);
records.timeline(store);
records.runs(store);
records.logs(store);
papers.specification(store);
papers.report(store);
store.on(["experiment", "points"], () =>
  difference.table(store, document.getElementById("scores"), curves.metricOf(store)),
);

function open() {
  const wanted = TABS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "overview";
  const part = wanted === "curves" ? "overview" : wanted; // curves by themselves are the overview without the rest
  for (const name of TABS.filter((one) => one !== "curves"))
    document.getElementById(`tab-${name}`).hidden = name !== part;
  document.getElementById("tab-overview").classList.toggle("only-curves", wanted === "curves");
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.hash === `#${wanted}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  window.dispatchEvent(new Event("resize"));
  if (store.experiment) store.tell(`open:${wanted}`);
}

// Written here, not hidden in the page: who reads the page without a browser would take it for the answer.
function missing() {
  const told = document.getElementById("missing");
  told.append(
    element("h1", {}, "No such experiment"),
    element(
      "p",
      {},
      "There is no experiment ",
      element("code", {}, root.dataset.id),
      " here; it may have been deleted. ",
      element("a", { href: `${base}/` }, "All experiments"),
    ),
  );
  told.hidden = false;
}

window.addEventListener("hashchange", open);
store
  .load()
  .then(open)
  .catch((error) => {
    if (error instanceof ApiError && [404, 422].includes(error.problem.status)) {
      root.hidden = true;
      missing();
    } else say(error);
  });
