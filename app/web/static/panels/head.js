// The sticky head: what is asked, how far it is, the answer once there is one, trouble above all.

import { armName, call, counted, difference, duration, element, number, over, prose, say, stateBadge, verdictWords } from "../api.js";
import { interval, spans } from "../forest.js";

const node = (name) => document.getElementById(name);
const WORDS = { succeeded: "finished", queued: "waits", waiting: "waits" };

export function mount(store) {
  store.on(["experiment", "rounds", "end"], () => draw(store));
  store.on(["connection"], () => connection(...store.connection));
  for (const action of ["pause", "resume", "cancel", "retry"])
    node(action).addEventListener("click", () => steer(store, action));
  node("clone").addEventListener("click", () => {
    sessionStorage.setItem("lockstep-spec", JSON.stringify(store.experiment.spec, null, 2));
    location.href = node("clone").dataset.to;
  });
}

function connection(name, detail = "") {
  const box = node("connection");
  box.className = `badge ${name}`;
  box.textContent = detail ? `${name} ${detail}` : name;
}

function draw(store) {
  const { experiment } = store;
  node("name").textContent = experiment.name;
  document.title = `${experiment.name} - Lockstep`;
  node("status").replaceWith(
    Object.assign(stateBadge(experiment), { id: "status", title: titleOf(experiment) }),
  );
  node("facts").replaceChildren(...facts(store).map((text) => element("span", {}, text)));
  node("waiting").textContent =
    experiment.why_waiting && ["queued", "waiting"].includes(experiment.status) ? experiment.why_waiting.text : "";
  const ended = over(experiment.status);
  node("pause").hidden = ended || experiment.desired !== "run";
  node("resume").hidden = ended || experiment.desired !== "pause";
  node("cancel").hidden = ended;
  node("retry").hidden = !["failed", "partial"].includes(experiment.status);
  answer(experiment.answer);
  trouble(store, experiment.causes);
}

function titleOf({ status, answer }) {
  const isVoid = answer && answer.code === "INVALID";
  return isVoid && status === "succeeded" ? "trained to the end, but the report is invalid" : WORDS[status] || "";
}

function facts(store) {
  const { experiment } = store;
  const done = store.current.filter((block) => block.is_finished || over(block.status)).length;
  const spent = [...store.runs.values()].reduce((sum, run) => sum + run.device_seconds, 0);
  const told = [`${done} of ${experiment.progress.blocks} replicates ended`];
  const left = secondsLeft(store);
  if (experiment.evaluating) told.push(experiment.evaluating.text);
  if (left !== null) told.push(`about ${duration(left)} left`);
  if (spent >= 1) told.push(spent > 360 ? `${number(spent / 3600)} device-hours` : `${duration(spent)} on devices`);
  return told;
}

// At the rate since the first block began; null while that says nothing.
export function secondsLeft(store) {
  const { experiment } = store;
  const done = store.current.reduce((sum, block) => sum + (block.complete_rounds || 0), 0);
  const total = experiment.rounds * experiment.progress.blocks;
  if (over(experiment.status) || experiment.status === "paused" || !experiment.started_at || !done) return null;
  return ((Date.now() - new Date(experiment.started_at)) / 1000 / done) * (total - done);
}

function answer(found) {
  node("verdict").hidden = !found;
  if (!found) return;
  node("verdict-code").textContent = verdictWords(found);
  node("verdict-sentence").replaceChildren(...prose(found.sentence));
  const { pair } = found;
  const told = pair
    ? `${pair.a} − ${pair.b}: ${[difference(pair.estimate, found.unit), ...spans(pair)].join(" · ")}`
    : "";
  node("verdict-numbers").textContent =
    told + (found.promotable ? "" : pair ? " · not to be promoted on this alone" : "");
  node("verdict-cautions").replaceChildren(
    ...found.cautions.map((item) => element("li", {}, element("code", {}, item.flag), ` ${item.text}`)),
  );
  node("verdict-plot").replaceChildren(...(pair ? [interval(found)] : []));
}

function trouble(store, causes) {
  node("causes").hidden = causes.length === 0;
  node("cause-list").replaceChildren(
    ...causes.slice(0, 5).map((item) =>
      element(
        "li",
        {},
        element(
          "strong",
          {},
          `${item.replicates.length > 1 ? "replicates" : "replicate"} ${item.replicates.join(", ")}`,
        ),
        ` ${item.status}, cause ${item.cause}${item.arms.length ? ` in the code of ${item.arms.join(", ")}` : ""}: `,
        element("span", { class: "cause-text" }, ...prose(item.text)),
        " ",
        item.run_id
          ? element(
              "button",
              {
                onclick: () => {
                  store.wantedLog = item.run_id;
                  location.hash = "log";
                  store.tell("log");
                },
              },
              "Log and traceback",
            )
          : null,
      ),
    ),
  );
  if (causes.length > 5)
    node("cause-list").append(element("li", {}, `and ${causes.length - 5} more reasons, under Runs and devices`));
  node("retry-note").hidden = node("retry").hidden;
}

async function steer(store, action) {
  const asks = {
    cancel: "Stop this experiment for good? What has been trained is kept, replicates that have not ended are lost.",
  };
  if (asks[action] && !confirm(asks[action])) return;
  try {
    await call(
      "POST",
      `experiments/${store.id}/${action}`,
      action === "retry" ? undefined : { reason: `${action} on the page` },
    );
    store.refreshSoon();
  } catch (error) {
    say(error);
  }
}

export function differs(store) {
  store.on(["experiment"], () => {
    const { arms, spec, shown } = store.experiment;
    const base = new Map(arms.flatMap((arm) => arm.diff.map((d) => [d.path, d.base])));
    const ofBase = [...base].map(([path, value]) => `${path}: ${JSON.stringify(value)}`).join("; ");
    node("arms").tBodies[0].replaceChildren(
      ...arms.map((arm) =>
        element(
          "tr",
          {},
          element("td", { "data-name": "" }, armName(arm.label, arm.index)),
          element("td", { "data-name": "Policy" }, arm.policy),
          element("td", { "data-name": "Reward" }, arm.reward_mode),
          element(
            "td",
            { "data-name": "Differs in" },
            arm.diff.map((d) => `${d.path}: ${JSON.stringify(d.base)} → ${JSON.stringify(d.value)}`).join("; ") ||
              (ofBase ? `the base (${ofBase})` : "the base"),
          ),
        ),
      ),
    );
    const analysis = spec.analysis || {};
    node("question").textContent =
      `Which arm is better by ${shown.primary}? ${analysis.replicates ? `${counted(analysis.replicates.planned, "replicate")}, ` : ""}` +
      `${analysis.sesoi ? `differences below ${number(analysis.sesoi)} do not matter, ` : ""}${analysis.inference === "none" ? "a demonstration without inference." : `judged by the ${analysis.estimand}.`}`;
  });
}
