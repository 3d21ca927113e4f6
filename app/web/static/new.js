// A specification with its plan beside it: judged while it is written, faults with their remedy.

import { base, call, duration, element, number, say } from "./api.js";
import * as power from "./panels/power.js";

const node = (name) => document.getElementById(name);
const form = node("submit");
const { spec } = form.elements;
let asked = 0;

function plain(found) {
  const lines = [
    `${found.num_blocks} blocks, ${found.num_runs} runs, ${number(found.env_steps_per_run)} env steps each`,
    found.evaluation,
    `placement ${found.placement}`,
  ];
  if (found.seconds_estimate) lines.push(`about ${duration(found.seconds_estimate)} with the workers registered now`);
  if (found.waits) lines.push(`would wait: ${found.waits.text}`);
  if (found.quantity) lines.push(found.quantity);
  lines.push(...found.power.map(power.powerLine));
  return [...lines, ...found.warnings.map((warning) => `warning: ${warning}`), `hash ${found.spec_hash}`].join("\n");
}

async function plan() {
  asked += 1;
  const mine = asked;
  if (!spec.value.trim()) return;
  try {
    const found = await call("POST", "plans", spec.value);
    if (mine !== asked) return;
    node("plan-result").textContent = plain(found);
    power.draw(node("power"), found.power, (found.spec.analysis || {}).sesoi);
  } catch (error) {
    if (mine !== asked) return;
    node("plan-result").textContent = error.message;
    node("power").replaceChildren();
  }
}

for (const example of document.querySelectorAll("template.example"))
  node("example").append(element("option", { value: example.dataset.name }, example.dataset.name));
node("example").addEventListener("change", (event) => {
  const chosen = document.querySelector(`template.example[data-name="${CSS.escape(event.target.value)}"]`);
  if (chosen) {
    spec.value = chosen.content.textContent;
    plan();
  }
});
spec.addEventListener("input", () => {
  clearTimeout(spec.timer);
  spec.timer = setTimeout(plan, 600);
});
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const made = await call("POST", "experiments", spec.value, { "Idempotency-Key": crypto.randomUUID() });
    location.href = `${base}/experiments/${made.id}`;
  } catch (error) {
    say(error);
    node("plan-result").textContent = error.message;
  }
});
const carried = sessionStorage.getItem("lockstep-spec");
if (carried) {
  spec.value = carried;
  sessionStorage.removeItem("lockstep-spec");
  plan();
}
