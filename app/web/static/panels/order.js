// Tables that are put in order by their heads: down, up, then the order they came in.

export function mount(table, get, set) {
  for (const head of table.tHead.querySelectorAll("[data-key]")) {
    head.addEventListener("click", () => {
      const order = [`-${head.dataset.key}`, head.dataset.key, ""];
      set(order[(order.indexOf(get()) + 1) % 3]);
    });
  }
}

export function shown(table, sort) {
  for (const head of table.tHead.querySelectorAll("[data-key]")) {
    const mine = head.dataset.key === sort.replace("-", "");
    if (mine) head.setAttribute("aria-sort", sort.startsWith("-") ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
}

// Items in the order of "name" or "-name"; equal ones stay as they came. `keys`: {name: item -> value}.
export function sorted(items, keys, sort) {
  const key = keys[sort.replace("-", "")],
    way = sort.startsWith("-") ? -1 : 1;
  if (!key) return items;
  return [...items].sort((first, second) => {
    const [a, b] = [key(first), key(second)];
    return a === b ? 0 : way * (a < b ? -1 : 1);
  });
}

// New rows in the place of old ones; who stood in a row with the keyboard stands there again.
export function replaceRows(body, rows) {
  const at = document.activeElement && body.contains(document.activeElement) ? document.activeElement : null;
  const old = at && at.closest("[data-id]");
  const place = old && [old, ...old.querySelectorAll("a, input, button")].indexOf(at);
  body.replaceChildren(...rows);
  if (!old || !old.dataset.id) return;
  const now = body.querySelector(`[data-id="${CSS.escape(old.dataset.id)}"]`);
  if (now) [now, ...now.querySelectorAll("a, input, button")][place]?.focus();
}
