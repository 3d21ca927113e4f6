// Where the work is: a lane an arm in every replicate, rounds done, device, resumes; what waits in one line.

import { armName, badge, element, replicates } from "../api.js";

export function mount(store) {
  const box = document.getElementById("lanes"),
    frame = document.getElementById("lanes-box");
  let drawn = false;
  store.on(["experiment", "rounds"], () => {
    const { rounds, why_waiting } = store.experiment;
    const blocks = store.current;
    const waiting = blocks.filter((block) => block.status === "queued" && !block.complete_rounds);
    const shown = blocks.filter((block) => !waiting.includes(block));
    const lanes = shown.flatMap((block) =>
      lane(
        block,
        [...store.runs.values()].filter((run) => run.block_id === block.id),
        store.arms,
        rounds,
      ),
    );
    box.replaceChildren(...lanes);
    if (waiting.length)
      box.append(
        element(
          "p",
          { class: "note" },
          `${replicates(waiting.map((block) => block.replicate))} ${waiting.length > 1 ? "wait" : "waits"}${why_waiting ? `: ${why_waiting.text}` : ""}`,
        ),
      );
    if (!drawn && store.isOver && blocks.length > 3) frame.open = false;
    drawn = true;
    if (!blocks.length) box.append(element("p", { class: "empty" }, "No replicate yet."));
  });
}

function lane(block, runs, arms, rounds) {
  return arms
    .map((label, arm) => {
      const run = runs.find((one) => one.group_id === label);
      if (!run) return null;
      const told = [run.device || "no device yet", `round ${run.rounds_done} of ${rounds}`];
      if (run.resumed)
        told.push(
          `resumed ${run.resumed === 1 ? "once" : `${run.resumed} times`}${block.resume_round ? `, last at round ${block.resume_round}` : ""}`,
        );
      if (run.status === "failed" && run.cause) told.push(run.cause.replaceAll("_", " "));
      if (run.stalled) told.push("no progress for a while");
      const width = `${(100 * run.rounds_done) / rounds}%`;
      return element(
        "div",
        { class: "lane" },
        element("span", {}, arm === 0 ? replicates([block.replicate]) : ""),
        element("span", {}, armName(label, arm)),
        element(
          "span",
          { class: `bar arm${arm}`, role: "img", "aria-label": told.join(", "), title: told.join(", ") },
          element("i", { style: { width } }),
          run.resumed && block.resume_round
            ? element("b", { style: { left: `${(100 * block.resume_round) / rounds}%` } })
            : null,
        ),
        element("small", { class: "where" }, badge(run.status), ` ${told.join(" · ")}`),
      );
    })
    .filter(Boolean);
}
