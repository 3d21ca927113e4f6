// A specification with its plan beside it: judged while it is written, faults with their remedy.

import { base, call, duration, element, faultText, number, say } from "./api.js";
import * as completion from "./panels/completion.js";
import * as form from "./panels/form.js";
import * as power from "./panels/power.js";
import { entryAt, fieldsOf } from "./yamlline.js";

const node = (name) => document.getElementById(name);
const { spec } = node("submit").elements;
let asked = 0;
let begun = ""; // the name of the example that the editor began with

function plain(found) {
  const lines = [
    `${found.num_blocks} blocks, ${found.num_runs} runs, ${number(found.env_steps_per_run)} env steps each`,
    found.evaluation,
    `placement ${found.placement}`,
  ];
  if (found.seconds_estimate) lines.push(`about ${duration(found.seconds_estimate)} ${found.waits ? "once it can run" : "with the workers registered now"}`);
  if (found.waits) lines.push(`would wait: ${found.waits.text}`);
  if (found.quantity) lines.push(found.quantity);
  lines.push(...found.power.map(power.powerLine));
  return [...lines, ...found.warnings.map((warning) => `warning: ${warning}`), `hash ${found.spec_hash}`].join("\n");
}

async function plan() {
  asked += 1;
  const mine = asked;
  form.shown(spec);
  if (!spec.value.trim()) return emptied();
  try {
    const found = await call("POST", "plans", spec.value);
    if (mine !== asked) return;
    node("plan-result").textContent = plain(found);
    node("plan-result").hidden = false;
    node("faults").replaceChildren();
    power.draw(node("power"), found.power, (found.spec.analysis || {}).sesoi);
  } catch (error) {
    if (mine !== asked) return;
    refused(error);
    node("power").replaceChildren();
  }
}

function emptied() {
  node("plan-result").textContent = "Write a specification, or start from an example.";
  node("plan-result").hidden = false;
  node("faults").replaceChildren();
  node("power").replaceChildren();
}

// Each fault with the line where it is to be mended.
function refused(error) {
  const faults = (error.problem && error.problem.errors) || [];
  const fields = fieldsOf(spec.value);
  node("plan-result").hidden = faults.length > 0;
  node("plan-result").textContent = error.message;
  node("faults").replaceChildren(
    ...faults.map((fault) => {
      const entry = entryAt(fields, fault.pointer || "");
      const line = entry && element("button", { type: "button", onclick: () => choose(entry.line) }, `line ${entry.line + 1}`);
      return element("li", {}, line, line ? " " : "", faultText(fault));
    }),
  );
}

function choose(line) {
  const before = spec.value.split("\n").slice(0, line);
  const start = before.join("\n").length + (line ? 1 : 0),
    end = spec.value.indexOf("\n", start);
  spec.focus();
  spec.setSelectionRange(start, end < 0 ? spec.value.length : end);
  spec.scrollTop = (line / spec.value.split("\n").length) * spec.scrollHeight - spec.clientHeight / 2;
}

function edited() {
  form.shown(spec);
  soon();
}

function soon() {
  clearTimeout(spec.timer);
  spec.timer = setTimeout(plan, 600);
}

const examples = new Map(
  [...document.querySelectorAll("template.example")].map((one) => [one.dataset.name, one.content.textContent]),
);

function start(name, text = examples.get(name) || "") {
  begun = name;
  node("example").value = name;
  spec.value = text;
  node("plan-result").textContent = "Planning ...";
  plan();
}

for (const name of examples.keys()) node("example").append(element("option", { value: name }, name));
node("example").addEventListener("change", ({ target }) => {
  const isEdited = spec.value.trim() && spec.value !== examples.get(begun);
  if (isEdited && !confirm("Replace what you have written?")) target.value = begun;
  else start(target.value);
});
spec.addEventListener("input", edited);
form.mount(spec, soon);
completion.mount(spec, edited);
node("submit").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const made = await call("POST", "experiments", spec.value, { "Idempotency-Key": crypto.randomUUID() });
    location.href = `${base}/experiments/${made.id}`;
  } catch (error) {
    say(error);
    refused(error);
  }
});
const carried = sessionStorage.getItem("lockstep-spec");
if (carried) {
  start("", carried);
  sessionStorage.removeItem("lockstep-spec");
} else start(examples.keys().next().value);
