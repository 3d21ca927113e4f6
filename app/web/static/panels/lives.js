// The lives of grafts in one environment, from the events of an episode, and their picture: a lane a slot.

import { element, mark, number, signed } from "../api.js";

const WIDTH = 460,
  LEFT = 44,
  LANE = 20;
const ENDS = ["PRUNED"];

// Lives of grafts in one environment:
// [{slot, blueprint, parts: [{stage, from, to, alpha: [start, end]}], contribution, end}].
export function lives(items, horizon) {
  const open = new Map(),
    all = [];
  for (const item of items) {
    if (item.slot === null) continue;
    let life = open.get(item.slot);
    if (item.type === "graft_germinated") {
      life = {
        slot: item.slot,
        blueprint: item.blueprint,
        params: item.params,
        parts: [],
        contribution: null,
        end: null,
      };
      open.set(item.slot, life);
      all.push(life);
    }
    if (!life) continue;
    const last = life.parts[life.parts.length - 1];
    if (last) Object.assign(last, { to: item.step, alpha: [last.alpha[0], item.alpha ?? 0] });
    if (item.contribution !== null) life.contribution = item.contribution;
    if (ENDS.includes(item.stage)) {
      life.end = { step: item.step, reason: item.reason };
      open.delete(item.slot);
    } else
      life.parts.push({ stage: item.stage, from: item.step, to: horizon, alpha: [item.alpha ?? 0, item.alpha ?? 0] });
  }
  return all;
}

export function environment(env, all, rollbacks, horizon) {
  const slots = [...new Set(all.map((life) => life.slot))].sort();
  const told = all.length
    ? `environment ${env}: ${all.map((life) => `${life.blueprint} in ${life.slot}, ${stageOf(life)}`).join("; ")}`
    : `environment ${env}: nothing grew`;
  if (!all.length)
    return element(
      "div",
      { class: "env" },
      element("h3", {}, `Environment ${env}`),
      element("p", { class: "note" }, "Nothing grew."),
    );
  const height = slots.length * LANE,
    x = (step) => LEFT + (step / horizon) * (WIDTH - LEFT - 4);
  return element(
    "div",
    { class: "env" },
    element("h3", {}, `Environment ${env}`),
    mark(
      "svg",
      { class: "plot", viewBox: `0 0 ${WIDTH} ${height + 16}`, role: "img", "aria-label": told },
      mark("title", {}, told),
      ...slots.flatMap((slot, index) => [
        mark("text", { class: "soft", x: 0, y: index * LANE + 14 }, slot),
        mark("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: (index + 1) * LANE - 1, y2: (index + 1) * LANE - 1 }),
        ...all.filter((life) => life.slot === slot).flatMap((life) => drawn(life, index * LANE, x)),
      ]),
      ...rollbacks.map((item) =>
        mark(
          "line",
          { class: "rollback", x1: x(item.step), x2: x(item.step), y1: 0, y2: height },
          mark("title", {}, `rollback: ${item.reason}`),
        ),
      ),
      mark("text", { class: "soft", x: LEFT, y: height + 12 }, "step 0"),
      mark("text", { class: "soft", x: WIDTH, y: height + 12, "text-anchor": "end" }, String(horizon)),
    ),
  );
}

function stageOf(life) {
  return life.end ? `pruned at step ${life.end.step}` : life.parts[life.parts.length - 1].stage.toLowerCase();
}

// The height of the fill is alpha; a graft that is not blended yet has an outline only, a fossil is dark.
function drawn(life, y, x) {
  const top = y + 3,
    size = LANE - 6;
  const first = life.parts[0].from,
    last = life.parts[life.parts.length - 1];
  const worth = life.contribution === null ? "" : ` ${signed(life.contribution)} pp`;
  const text = `${life.blueprint}${worth}`;
  const wide = x(last.to) - x(first) > 6 * text.length;
  return [
    ...life.parts.map((part) =>
      mark(
        "g",
        {},
        mark(
          "title",
          {},
          `${life.blueprint} in ${life.slot}: ${part.stage.toLowerCase()} from step ${part.from} to ${part.to}, alpha ${part.alpha.map(number).join(" to ")}${worth && `, contribution${worth}`}`,
        ),
        mark("rect", {
          class: `stage ${part.stage.toLowerCase()}`,
          x: x(part.from),
          y: top,
          width: Math.max(1, x(part.to) - x(part.from)),
          height: size,
        }),
        mark("path", {
          class: `alpha ${part.stage.toLowerCase()}`,
          d: `M${x(part.from)} ${top + size} V${top + size * (1 - part.alpha[0])} L${x(part.to)} ${top + size * (1 - part.alpha[1])} V${top + size} Z`,
        }),
      ),
    ),
    life.end
      ? mark("text", { class: "pruned", x: x(life.end.step) - 3, y: y + 14, "text-anchor": "middle" }, "×")
      : null,
    wide ? mark("text", { class: "name", x: x(first) + 4, y: y + 14 }, text) : null,
  ].filter(Boolean);
}
