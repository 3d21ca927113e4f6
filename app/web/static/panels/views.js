// Filters of a table: names for their addresses kept in this browser, what is mine, and what may be written.

import { call, element, say } from "../api.js";

const node = (name) => document.getElementById(name);
let kept = "lockstep-views";

function saved() {
  try {
    const found = JSON.parse(localStorage.getItem(kept) || "[]");
    return Array.isArray(found)
      ? found.filter((view) => typeof view.name === "string" && typeof view.query === "string")
      : [];
  } catch {
    return [];
  }
}

function keep(list) {
  try {
    localStorage.setItem(kept, JSON.stringify(list));
  } catch {
    say(new Error("This browser keeps nothing: the view is not saved."));
  }
}

export function mount(page, filters, address, open) {
  kept = `lockstep-views-${page}`;
  node("mine").addEventListener("click", async () => {
    try {
      const { name } = await call("GET", "session"),
        { owner } = filters.elements;
      owner.value = owner.value === name ? "" : name;
      owner.dispatchEvent(new Event("input", { bubbles: true }));
    } catch (error) {
      say(error);
    }
  });
  node("views").addEventListener("change", (event) => {
    if (event.target.value) open(saved().find((view) => view.name === event.target.value).query);
  });
  node("save-view").addEventListener("click", () => {
    const name = (prompt("Name of this view", address() || "all experiments") || "").trim().slice(0, 60);
    if (!name) return;
    keep(
      [...saved().filter((view) => view.name !== name), { name, query: address() }].sort((a, b) =>
        a.name.localeCompare(b.name),
      ),
    );
    shown(address());
  });
  node("drop-view").addEventListener("click", () => {
    keep(saved().filter((view) => view.name !== node("views").value));
    shown(address());
  });
}

export function shown(query) {
  const list = saved();
  const names = ["", ...list.map((view) => view.name)];
  const there = [...node("views").options].map((option) => option.value);
  if (JSON.stringify(names) !== JSON.stringify(there)) {
    node("views").replaceChildren(...names.map((name) => element("option", { value: name }, name || "saved views")));
  }
  const current = list.find((view) => view.query === query);
  node("views").value = current ? current.name : "";
  node("drop-view").hidden = !current;
}

// Owners and tags that are on the page, for their fields.
export function suggest(items) {
  const fill = (id, values) =>
    node(id).replaceChildren(...[...new Set(values)].sort().map((value) => element("option", { value })));
  fill(
    "owners",
    items.map((item) => item.owner),
  );
  fill(
    "tags",
    items.flatMap((item) => item.tags),
  );
}
