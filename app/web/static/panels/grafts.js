// What grew in each environment of a run, step by step: stage, blueprint, alpha, contribution. Morphogenesis only.

import { call, element, number, say, signed } from "../api.js";
import { environment, lives } from "./lives.js";

const node = (name) => document.getElementById(name);
const view = { run: null, round: null, newest: true };

export function mount(store) {
  store.on(["experiment"], () => offer(store));
  store.on(["rounds"], () => {
    if (view.newest) load(store);
  });
  store.on(["open:overview"], () => load(store));
  node("graft-run").addEventListener("change", (event) => {
    view.run = event.target.value;
    view.newest = true;
    load(store);
  });
  node("graft-round").addEventListener("change", (event) => {
    view.round = event.target.valueAsNumber;
    view.newest = view.round === Number(event.target.max);
    load(store);
  });
}

function offer(store) {
  const grows = store.experiment.spec.env.kind === "morphogenesis";
  node("grafts-box").hidden = !grows;
  if (!grows) return;
  const begun = [...store.runs.values()].filter((run) => run.rounds_done > 0).sort((a, b) => a.replicate - b.replicate);
  node("grafts-none").hidden = begun.length > 0;
  node("grafts-controls").hidden = begun.length === 0;
  const known = new Set([...node("graft-run").options].map((option) => option.value));
  node("graft-run").append(
    ...begun
      .filter((run) => !known.has(run.id))
      .map((run) => element("option", { value: run.id }, `replicate ${run.replicate}, ${run.group_id}`)),
  );
  if (!view.run && begun.length) {
    view.run = begun[0].id;
    load(store);
  }
}

async function load(store) {
  if (!view.run || !node("grafts-box").open || node("tab-overview").hidden) return;
  const asked = `${view.run} ${view.newest ? store.runs.get(view.run).rounds_done : view.round}`;
  if (asked === view.asked) return;
  view.asked = asked;
  try {
    const found = await call("GET", `runs/${view.run}/grafts${view.newest ? "" : `?round=${view.round}`}`);
    if (asked === view.asked) draw(found);
  } catch (error) {
    view.asked = null;
    say(error);
  }
}

function draw(found) {
  const { horizon, round, rounds } = found;
  Object.assign(node("graft-round"), { max: rounds - 1, value: round });
  const boxes = found.envs.map((env) => {
    const mine = found.changes.filter((item) => item.env_id === env);
    return environment(
      env,
      lives(mine, horizon),
      mine.filter((item) => item.type === "governor_rollback"),
      horizon,
    );
  });
  node("grafts").replaceChildren(...boxes);
  const all = found.envs.flatMap((env) =>
    lives(
      found.changes.filter((item) => item.env_id === env),
      horizon,
    ).map((life) => ({ env, life })),
  );
  node("grafts-table").tBodies[0].replaceChildren(
    ...all.flatMap(({ env, life }) =>
      life.parts.map((part) =>
        element(
          "tr",
          {},
          ...[
            String(env),
            life.slot,
            life.blueprint,
            part.stage.toLowerCase(),
            `${part.from}–${part.to}`,
            part.alpha.map(number).join(" → "),
            life.contribution === null ? "not measured" : `${signed(life.contribution)} pp`,
          ].map((text) => element("td", {}, text)),
        ),
      ),
    ),
  );
}
