// Several experiments side by side; the address holds their ids, so that a comparison can be sent to somebody.

import { ago, all, base, call, element, over, prose, say, stateBadge, verdictWords } from "./api.js";
import * as differs from "./panels/differs.js";
import * as effects from "./panels/effects.js";
import * as overlay from "./panels/overlay.js";
import { repeat } from "./repeat.js";

const MOST = 8;
const node = (name) => document.getElementById(name);
const state = { ids: [], compared: [] };

function wanted() {
  const given = (new URLSearchParams(location.search).get("ids") || "").split(",").map((id) => id.trim());
  return [...new Set(given.filter(Boolean))];
}

async function load(id) {
  const experiment = await call("GET", `experiments/${encodeURIComponent(id)}`);
  const [{ items: runs }, report] = await Promise.all([
    all(`experiments/${id}/runs`),
    experiment.answer ? call("GET", `experiments/${id}/report?format=json`) : null,
  ]);
  const first = runs.find((run) => run.rounds_done > 0);
  const { metrics } = first ? await call("GET", `runs/${first.id}`) : { metrics: [] };
  return { id, experiment, runs, report, metrics };
}

async function refresh() {
  const ids = wanted().slice(0, MOST);
  const found = await Promise.allSettled(ids.map(load));
  const refused = found.flatMap((one, index) => (one.status === "rejected" ? [[ids[index], one.reason]] : []));
  if (wanted().length > MOST) refused.push([wanted().slice(MOST).join(", "), new Error(`at most ${MOST} at once`)]);
  node("refused").hidden = refused.length === 0;
  node("refused").replaceChildren(
    ...refused.map(([id, why]) => element("li", {}, element("code", {}, id), `: ${why.message}`)),
  );
  state.ids = ids;
  state.compared = found.filter((one) => one.status === "fulfilled").map((one) => one.value);
  draw();
}

function draw() {
  const { compared } = state;
  node("empty").hidden = wanted().length > 0;
  node("compared").hidden = compared.length === 0;
  const warnings = compared.length > 1 ? differs.warnings(compared) : [];
  node("warnings").hidden = warnings.length === 0;
  node("warnings").replaceChildren(...warnings.map((text) => element("li", {}, text)));
  document.title = `${compared.map((one) => one.experiment.name).join(" | ") || "Compare"} - Lockstep`;
  if (!compared.length) return;
  node("answers").tBodies[0].replaceChildren(...compared.map(answer));
  differs.draw(compared, node("differs"), node("same"));
  effects.draw(compared, node("effects"), node("effects-note"));
  overlay.draw(compared).catch(say);
}

function answer({ id, experiment }) {
  const { answer: found, progress } = experiment;
  const ended = `${progress.blocks_by_status.succeeded || 0} of ${progress.blocks} replicates`;
  return element(
    "tr",
    { "data-id": id },
    element(
      "td",
      { "data-name": "" },
      element("a", { href: `${base}/experiments/${id}` }, element("bdi", {}, experiment.name)),
      element("br"),
      element("small", {}, ago(experiment.created_at), " · ", element("bdi", {}, experiment.owner)),
    ),
    element("td", { "data-name": "State" }, stateBadge(experiment), element("br"), element("small", {}, ended)),
    element(
      "td",
      { "data-name": "" },
      ...(found
        ? [element("strong", {}, verdictWords(found)), element("br"), ...prose(found.sentence)]
        : ["No verdict before the registered end."]),
    ),
    element("td", { "data-name": "Question" }, question(experiment)),
    element(
      "td",
      {},
      element(
        "a",
        { href: addressOf(wanted().filter((one) => one !== id)), "aria-label": `take ${experiment.name} out` },
        "×",
      ),
    ),
  );
}

function question({ spec, shown }) {
  const analysis = spec.analysis || {};
  const band = analysis.sesoi ? `, ± ${analysis.sesoi} does not matter` : "";
  return `${shown.primary}${band}`;
}

function addressOf(ids) {
  return `${base}/compare${ids.length ? `?ids=${ids.join(",")}` : ""}`;
}

async function offer() {
  const { items } = await call("GET", "experiments?limit=100");
  node("add").append(
    ...items
      .filter((item) => !wanted().includes(item.id))
      .map((item) =>
        element("option", { value: item.id }, `${item.name} (${new Date(item.created_at).toLocaleDateString()})`),
      ),
  );
}

node("add").addEventListener("change", (event) => {
  location.href = addressOf([...wanted(), event.target.value]);
});
overlay.mount(() => state.compared);
refresh().then(offer).catch(say);
repeat(refresh, 10000, () => state.compared.some((one) => !over(one.experiment.status)));
