// A row of the list: arms, answer with its interval, progress, age; and how rows are put in order.

import { ago, aligned, armName, badge, base, duration, element, number, over, verdictWords } from "../api.js";
import { interval, levelOf } from "../forest.js";

export const KEYS = {
  name: (item) => item.name.toLowerCase(),
  arms: (item) => item.num_arms,
  answer: (item) => (item.answer ? `0 ${item.answer.code}` : `1 ${item.status}`),
  effect: (item) => (item.answer && item.answer.pair ? Math.abs(item.answer.pair.estimate) : -1),
  progress: (item) => item.progress.fraction,
  when: (item) => item.finished_at || item.created_at,
  priority: (item) => item.priority,
  owner: (item) => item.owner.toLowerCase(),
};

// A winner is named first, whatever the control is, so that its advantage reads as one.
function winnerFirst(answer) {
  const pair = answer && answer.pair;
  if (!pair || answer.winner !== pair.b) return answer;
  const turned = (bounds) => bounds && [...bounds].reverse().map((end) => (end === null ? null : -end));
  const { a, b, estimate, ci_superiority: wide, ci_equivalence: inner } = pair;
  const facing = { a: b, b: a, estimate: -estimate, ci_superiority: turned(wide), ci_equivalence: turned(inner) };
  return { ...answer, pair: { ...pair, ...facing } };
}

function answer(item, found) {
  if (!found) {
    if (over(item.status)) return badge(item.status);
    return element(
      "span",
      {},
      badge(item.status),
      " ",
      element("progress", { max: 1, value: item.progress.fraction, "aria-label": `progress of ${item.name}` }),
    );
  }
  const { pair } = found;
  const [low, high] = (pair && pair.ci_superiority) || [];
  const ends = pair ? aligned([pair.estimate, low ?? -Infinity, high ?? Infinity]) : [];
  const span = pair
    ? `${pair.a} ${ends[0]} ${found.unit === "%" ? "pp" : found.unit} [${levelOf(pair.alpha_used)} ${ends[1]}, ${ends[2]}]`
    : "";
  const ended = over(item.status) && item.status !== "succeeded" ? element("span", {}, " ", badge(item.status)) : null;
  return element(
    "span",
    { title: found.sentence },
    element("strong", {}, verdictWords(found)),
    " ",
    element("bdi", {}, span),
    ended,
  );
}

function when(item) {
  if (over(item.status)) return ago(item.finished_at || item.created_at);
  return item.seconds_left === null ? ago(item.created_at) : element("span", {}, `${duration(item.seconds_left)} left`);
}

export function row(item, choice) {
  const { blocks, blocks_by_status: by } = item.progress;
  const arms = item.arms.slice(0, 8).map((label, index) => element("span", { class: "chip" }, armName(label, index)));
  const found = winnerFirst(item.answer);
  const plot =
    found && found.pair
      ? element("span", { class: "mini" }, interval(found, { width: 150, height: 18, words: false }))
      : null;
  return element(
    "tr",
    { "data-id": item.id },
    element("td", { class: "pick", "data-name": "" }, choice.box(item)),
    element(
      "td",
      { "data-name": "" },
      element("a", { href: `${base}/experiments/${item.id}` }, element("bdi", {}, item.name)),
      ...item.tags.map((tag) => element("bdi", { class: "tag" }, tag)),
    ),
    element("td", { "data-name": "" }, ...arms),
    element("td", { class: "said", "data-name": "" }, answer(item, found)),
    element("td", { "data-name": "" }, plot),
    element("td", { class: "number", "data-name": "Replicates" }, `${number(by.succeeded || 0)} of ${blocks}`),
    element("td", { class: "once", "data-name": "" }, when(item)),
    element("td", { class: "number", "data-name": "Priority" }, String(item.priority)),
    element("td", { "data-name": "Owner" }, element("bdi", {}, item.owner)),
  );
}
