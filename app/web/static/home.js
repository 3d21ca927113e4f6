// The list of experiments, each with its answer; filters live in the address.

import { ago, armName, badge, base, call, element, number, over, say, signed } from "./api.js";
import { interval } from "./forest.js";

const node = (name) => document.getElementById(name);
const filters = node("filters");
let cursor = null;

function answer(item) {
  const { answer: found } = item;
  if (!found) return over(item.status) ? badge(item.status) : element("span", {}, badge(item.status), " ", element("progress", { max: 1, value: item.progress.fraction, "aria-label": "progress" }));
  const told = found.code.replaceAll("_", " ").toLowerCase();
  const { pair } = found;
  const [low, high] = (pair && pair.ci_superiority) || [];
  const span = pair ? `${pair.a} ${signed(pair.estimate)} ${found.unit} [${signed(low ?? -Infinity)}, ${signed(high ?? Infinity)}]` : "";
  return element("span", { title: found.sentence }, element("strong", {}, told), " ", element("bdi", {}, span), over(item.status) && item.status !== "succeeded" ? element("span", {}, " ", badge(item.status)) : null);
}

function row(item) {
  const { blocks, blocks_by_status: by } = item.progress;
  const arms = item.arms.slice(0, 8).map((label, index) => element("span", { style: { marginRight: "10px", whiteSpace: "nowrap" } }, armName(label, index)));
  const plot = item.answer && item.answer.pair ? element("span", { class: "mini" }, interval(item.answer, { width: 150, height: 18, words: false })) : null;
  return element("tr", {},
    element("td", { "data-name": "" }, element("a", { href: `${base}/experiments/${item.id}` }, element("bdi", {}, item.name)), ...item.tags.map((tag) => element("bdi", { class: "tag" }, tag))),
    element("td", { "data-name": "" }, ...arms), element("td", { "data-name": "" }, answer(item)), element("td", { style: { minWidth: "120px" } }, plot),
    element("td", { class: "number", "data-name": "Replicates" }, `${number(by.succeeded || 0)} of ${blocks}`), element("td", { class: "once", "data-name": "" }, ago(item.finished_at || item.created_at)),
    element("td", { "data-name": "Owner" }, element("bdi", {}, item.owner)));
}

async function list(append = false) {
  const query = new URLSearchParams({ limit: 50 });
  const chosen = [...new FormData(filters)].filter(([, value]) => value);
  for (const [name, value] of chosen) query.set(name, value);
  if (append && cursor) query.set("cursor", cursor);
  const page = await call("GET", `experiments?${query}`);
  const body = node("experiments").tBodies[0];
  const rows = page.items.map(row);
  if (append) body.append(...rows); else body.replaceChildren(...rows);
  cursor = page.next;
  node("more").hidden = cursor === null;
  node("empty").hidden = body.rows.length > 0 || chosen.length > 0;
  node("none").hidden = body.rows.length > 0 || chosen.length === 0;
  const address = new URLSearchParams(chosen).toString();
  history.replaceState(null, "", address ? `?${address}` : location.pathname);
}

for (const [name, value] of new URLSearchParams(location.search)) if (filters.elements[name]) filters.elements[name].value = value;
filters.addEventListener("input", () => { clearTimeout(filters.timer); filters.timer = setTimeout(() => list().catch(say), 250); });
filters.addEventListener("submit", (event) => event.preventDefault());
node("more").addEventListener("click", () => list(true).catch(say));
list().catch(say);
setInterval(() => { if (!document.hidden && node("experiments").tBodies[0].rows.length <= 50) list().catch(say); }, 5000);
