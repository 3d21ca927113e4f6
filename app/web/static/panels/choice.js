// What is chosen in a list, and what may be done with all of it at once: compare, cancel, priority, tags.

import { base, call, element, over, say } from "../api.js";

const node = (name) => document.getElementById(name);
const chosen = new Map(); // id -> item as last shown
let shownItems = [];

export function mount(again) {
  node("compare").addEventListener("click", () => {
    location.href = `${base}/compare?ids=${[...chosen.keys()].join(",")}`;
  });
  node("choose-none").addEventListener("click", () => {
    chosen.clear();
    tell();
  });
  node("choose-all").addEventListener("change", (event) => {
    for (const item of shownItems)
      if (event.target.checked) chosen.set(item.id, item);
      else chosen.delete(item.id);
    tell();
  });
  const act = (id, make) => node(id).addEventListener("click", () => each(make(), again));
  act("cancel-chosen", () => {
    const going = [...chosen.values()].filter((item) => !over(item.status));
    if (!going.length) {
      say(new Error("None of these can be cancelled: all have ended."));
      return null;
    }
    const names = going
      .map((item) => item.name)
      .slice(0, 5)
      .join(", ");
    if (!confirm(`Stop ${going.length} for good: ${names}? What has been trained is kept.`)) return null;
    return [going, (item) => call("POST", `experiments/${item.id}/cancel`, { reason: "cancelled in the list" })];
  });
  act("set-priority", () => {
    const priority = node("priority").valueAsNumber;
    if (!Number.isInteger(priority) || priority < 0 || priority > 100) {
      say(new Error("A priority is a whole number from 0 to 100."));
      return null;
    }
    return [[...chosen.values()], (item) => call("PATCH", `experiments/${item.id}`, { priority })];
  });
  const tagged = (change) => () => {
    const tag = node("new-tag").value.trim();
    if (!tag) {
      say(new Error("Write a tag first."));
      return null;
    }
    return [[...chosen.values()], (item) => editTags(item.id, (tags) => change(tags, tag))];
  };
  act(
    "add-tag",
    tagged((tags, tag) => [...new Set([...tags, tag])]),
  );
  act(
    "take-tag",
    tagged((tags, tag) => tags.filter((one) => one !== tag)),
  );
}

// Read and written at one version, so that nobody's tag is lost; once more where somebody was faster.
async function editTags(id, change, tries = 3) {
  const { tags, version } = await call("GET", `experiments/${id}`);
  try {
    return await call("PATCH", `experiments/${id}`, { tags: change(tags) }, { "If-Match": `"${version}"` });
  } catch (error) {
    if (tries > 1 && error.problem && error.problem.status === 412) return editTags(id, change, tries - 1);
    throw error;
  }
}

// One after another; what was refused is named, the rest stands.
async function each(plan, again) {
  if (!plan) return;
  const [items, act] = plan;
  const refused = [];
  for (const item of items) {
    try {
      await act(item);
    } catch (error) {
      refused.push(`${item.name}: ${error.message}`);
    }
  }
  if (refused.length)
    say(
      new Error(
        [`${items.length - refused.length} of ${items.length} done. Refused:`, ...refused.slice(0, 5)].join("\n"),
      ),
    );
  await again().catch(say);
}

export function box(item) {
  return element("input", {
    type: "checkbox",
    "aria-label": `choose ${item.name}`,
    checked: chosen.has(item.id),
    onchange: (event) => {
      if (event.target.checked) chosen.set(item.id, item);
      else chosen.delete(item.id);
      tell();
    },
  });
}

export function shown(items) {
  shownItems = items;
  for (const item of items) if (chosen.has(item.id)) chosen.set(item.id, item);
  tell();
}

function tell() {
  node("chosen").hidden = chosen.size === 0;
  node("chosen-count").textContent = `${chosen.size} chosen`;
  node("compare").disabled = chosen.size < 2 || chosen.size > 8;
  node("compare").title = chosen.size > 8 ? "at most 8 at once" : chosen.size < 2 ? "choose a second one" : "";
  for (const input of document.querySelectorAll("td.pick input"))
    input.checked = chosen.has(input.closest("tr").dataset.id);
  const all = shownItems.length > 0 && shownItems.every((item) => chosen.has(item.id));
  Object.assign(node("choose-all"), {
    checked: all,
    indeterminate: !all && shownItems.some((item) => chosen.has(item.id)),
  });
}
