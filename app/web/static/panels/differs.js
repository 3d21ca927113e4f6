// What differs between specifications, and only that; and what forbids reading their effects side by side.

import { armName, element } from "../api.js";

// Said elsewhere, or the same by nature.
const APART = new Set(["arms", "experiment.name", "experiment.notes", "experiment.tags"]);

// Paths of a specification with their values; lists of plain values are one value.
export function flat(value, path = "", found = new Map()) {
  if (APART.has(path)) return found;
  const isPlain =
    value === null ||
    typeof value !== "object" ||
    (Array.isArray(value) && value.every((item) => typeof item !== "object"));
  if (isPlain) return found.set(path, JSON.stringify(value));
  for (const [name, item] of Object.entries(value)) flat(item, path ? `${path}.${name}` : name, found);
  return found;
}

function armText(arm) {
  const own = arm.diff.map((item) => `${item.path}: ${JSON.stringify(item.value)}`);
  return [arm.policy, arm.reward_mode, ...own].filter(Boolean).join(", ");
}

// [{path, values: [text or null by experiment]}] where not all are equal.
export function rows(compared) {
  const specs = compared.map(({ experiment }) => flat(experiment.spec));
  const arms = compared.map(
    ({ experiment }) => new Map(experiment.arms.map((arm) => [`arm ${arm.label}`, armText(arm)])),
  );
  const all = specs.map((spec, index) => new Map([...arms[index], ...spec]));
  const paths = [...new Set(all.flatMap((one) => [...one.keys()]))];
  const kept = paths
    .map((path) => ({ path, values: all.map((one) => one.get(path) ?? null) }))
    .filter(({ values }) => new Set(values).size > 1);
  return { kept, same: paths.length - kept.length };
}

export function warnings(compared) {
  const differ = (part) => new Set(compared.map(({ experiment }) => JSON.stringify(part(experiment)))).size > 1;
  return [
    differ((one) => one.spec.env) && "The task differs: effects on different tasks answer different questions.",
    differ((one) => one.spec.budget) && "The budget differs: a longer training may change who is ahead.",
    differ((one) => one.spec.analysis) &&
      "The analysis differs: other metric, other rule or other level, so verdicts are not alike.",
    differ((one) => one.spec.experiment.seed) &&
      "The root seeds differ: replicates of one number are not pairs across experiments.",
  ].filter(Boolean);
}

export function draw(compared, table, note) {
  const { kept, same } = rows(compared);
  note.textContent =
    compared.length < 2
      ? "Add a second experiment to see what differs."
      : `${same} fields are the same${kept.length ? "" : ": nothing differs"}.`;
  table.hidden = compared.length < 2 || kept.length === 0;
  table.tHead.replaceChildren(
    element(
      "tr",
      {},
      element("th", {}, "Field"),
      ...compared.map(({ experiment }) => element("th", {}, element("bdi", {}, experiment.name))),
    ),
  );
  table.tBodies[0].replaceChildren(
    ...kept.map(({ path, values }) =>
      element(
        "tr",
        { "data-path": path },
        element("td", { "data-name": "" }, name(compared, path)),
        ...values.map((value, index) =>
          element(
            "td",
            { "data-name": compared[index].experiment.name },
            value === null ? "–" : element("code", {}, value),
          ),
        ),
      ),
    ),
  );
}

function name(compared, path) {
  if (!path.startsWith("arm ")) return element("code", {}, path);
  const label = path.slice(4);
  const at = compared
    .map(({ experiment }) => experiment.arms.findIndex((arm) => arm.label === label))
    .find((index) => index >= 0);
  return armName(label, at);
}
