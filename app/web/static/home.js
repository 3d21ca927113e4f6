// The list of experiments, each with its answer; filters and order live in the address, views of it in this browser.

import { call, say } from "./api.js";
import * as choice from "./panels/choice.js";
import { KEYS, row } from "./panels/listed.js";
import * as order from "./panels/order.js";
import * as views from "./panels/views.js";
import { repeat } from "./repeat.js";

const PAGE = 50,
  SORTED = 1000;
const node = (name) => document.getElementById(name);
const filters = node("filters");
const state = { items: [], cursor: null, sort: "" };

function chosenFilters() {
  return [...new FormData(filters)].filter(([, value]) => value);
}

function address() {
  const query = new URLSearchParams(chosenFilters());
  if (state.sort) query.set("sort", state.sort);
  return query.toString();
}

async function page(limit, cursor) {
  const query = new URLSearchParams(chosenFilters());
  query.set("limit", limit);
  if (cursor) query.set("cursor", cursor);
  return call("GET", `experiments?${query}`);
}

// Newest first is the server's order, page by page; any other order needs them all, up to a number that is said.
async function list(append = false) {
  if (append && !state.sort) {
    const more = await page(PAGE, state.cursor);
    state.items.push(...more.items);
    state.cursor = more.next;
  } else {
    const items = [],
      limit = state.sort ? 200 : Math.min(200, Math.max(PAGE, state.items.length));
    let cursor = null;
    do {
      const more = await page(limit, cursor);
      items.push(...more.items);
      cursor = more.next;
    } while (state.sort && cursor && items.length < SORTED);
    Object.assign(state, { items, cursor });
  }
  draw();
}

function draw() {
  const items = order.sorted(state.items, KEYS, state.sort);
  order.replaceRows(
    node("experiments").tBodies[0],
    items.map((item) => row(item, choice)),
  );
  node("more").hidden = state.cursor === null || Boolean(state.sort);
  node("sorted").hidden = !state.sort || state.cursor === null;
  node("sorted").textContent = `Sorted among the newest ${items.length}; narrow the filters to reach older ones.`;
  const filtered = chosenFilters().length > 0;
  node("experiments").hidden = items.length === 0;
  node("empty").hidden = items.length > 0 || filtered;
  node("none").hidden = items.length > 0 || !filtered;
  order.shown(node("experiments"), state.sort);
  views.suggest(items);
  choice.shown(items);
  history.replaceState(null, "", address() ? `?${address()}` : location.pathname);
  views.shown(address());
}

function open(query) {
  const given = new URLSearchParams(query);
  for (const field of filters.elements) if (field.name) field.value = given.get(field.name) || "";
  state.sort = given.get("sort") || "";
  state.items = [];
  list().catch(say);
}

filters.addEventListener("input", (event) => {
  if (!event.target.name) return;
  clearTimeout(filters.timer);
  filters.timer = setTimeout(() => {
    state.items = [];
    list().catch(say);
  }, 250);
});
filters.addEventListener("submit", (event) => event.preventDefault());
order.mount(
  node("experiments"),
  () => state.sort,
  (sort) => {
    state.sort = sort;
    list().catch(say);
  },
);
node("more").addEventListener("click", () => list(true).catch(say));
choice.mount(() => list());
views.mount("list", filters, address, open);
open(location.search);
repeat(list, 5000, () => state.items.length <= 200);
