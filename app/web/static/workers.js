// Workers as cards: device, health, what each one trains and since when, its last error and events; drain and clear.

import { ago, all, badge, base, bytes, call, duration, element, say } from "./api.js";
import { replaceRows } from "./panels/order.js";
import { repeat } from "./repeat.js";

const node = (name) => document.getElementById(name);

function meter(name, share, told) {
  return element(
    "p",
    { class: "meter" },
    element("span", {}, name),
    element("progress", { max: 1, value: share, "aria-label": name }),
    element("small", {}, told),
  );
}

function device(worker) {
  const { memory_used_bytes, utilisation, temperature_c } = worker.health;
  const lines = [
    element("p", {}, worker.device_model, " ", element("code", {}, worker.device_uid)),
  ];
  if (memory_used_bytes)
    lines.push(
      meter(
        "memory",
        memory_used_bytes / worker.memory_bytes,
        `${bytes(memory_used_bytes)} of ${bytes(worker.memory_bytes)}`,
      ),
    );
  if (utilisation !== null && utilisation !== undefined)
    lines.push(
      meter(
        "busy",
        utilisation / 100,
        `${utilisation.toFixed(0)} %${temperature_c ? ` · ${temperature_c.toFixed(0)} °C` : ""}`,
      ),
    );
  return lines;
}

function trains(worker) {
  if (!worker.holds) return [];
  const { experiment_id, experiment_name, blocks, rounds, since } = worker.holds;
  const link = element("a", { href: `${base}/experiments/${experiment_id}` }, experiment_name);
  const numbers = blocks.map(({ replicate }) => replicate).sort((a, b) => a - b);
  const which = numbers.length > 1 ? `replicates ${numbers.join(", ")} side by side` : `replicate ${numbers[0]}`;
  const done = blocks.map(({ progress }) => (progress && progress.round) || 0);
  const share = done.reduce((sum, round) => sum + round, 0) / (rounds * blocks.length);
  const [least, most] = [Math.min(...done), Math.max(...done)];
  return [
    element("p", {}, worker.status === "reserved" ? "is about to train " : "trains ", link, `, ${which}, since `, since ? ago(since) : "now"),
    meter("round", share, least === most ? `${least} of ${rounds}` : `${least} to ${most} of ${rounds}`),
  ];
}

function trouble(worker) {
  const told = [];
  if (["quarantined", "lost"].includes(worker.status))
    told.push(element("p", { class: "defect" }, `${worker.status}: ${worker.status_text}`));
  for (const plugin of worker.defects)
    told.push(
      element(
        "p",
        { class: "defect" },
        `${plugin.kind} `,
        element("bdi", {}, plugin.name),
        ` cannot be used: ${plugin.reason}`,
      ),
    );
  const { last_error } = worker;
  if (last_error)
    told.push(
      element(
        "p",
        { class: "soft" },
        "last error, ",
        ago(last_error.at),
        ": ",
        element("a", { href: `${base}/experiments/${last_error.experiment_id}#log` }, `replicate ${last_error.replicate}`),
        ` (${last_error.cause || "no cause"}) ${(last_error.text || "").split("\n").pop().slice(0, 200)}`,
      ),
    );
  return told;
}

function button(worker, path, body, text, sure) {
  const act = async () => {
    if (sure && !confirm(sure)) return;
    try {
      await call("POST", `workers/${worker.id}/${path}`, body);
      await refresh();
    } catch (error) {
      say(error);
    }
  };
  return element("button", { "aria-label": `${text} ${worker.name}`, onclick: act }, text);
}

function stopNow(worker) {
  const sure = `Stop what ${worker.name} trains at the end of its round? Another worker goes on from there.`;
  return button(worker, "drain", { now: true }, "Stop its work now", sure);
}

function buttons(worker) {
  if (worker.status === "quarantined") return [button(worker, "clear", {}, "Clear quarantine")];
  if (worker.drain) return ["drains: it takes nothing more", stopNow(worker)];
  return [button(worker, "drain", { now: false }, "Drain", `Let ${worker.name} end what it trains, and then retire?`)];
}

function card(worker) {
  const versions = Object.entries(worker.versions)
    .map(([name, version]) => `${name} ${version}`)
    .join(" · ");
  return element(
    "li",
    { "data-id": worker.id },
    element(
      "div",
      { class: "headline" },
      element("h2", {}, element("bdi", {}, worker.name)),
      badge(worker.status),
      element("small", {}, "since ", ago(worker.since)),
      element("div", { class: "buttons" }, ...buttons(worker)),
    ),
    ...trouble(worker),
    ...trains(worker),
    ...device(worker),
    element(
      "ol",
      { class: "timeline", "aria-label": `last events of ${worker.name}` },
      ...worker.events.map((event) =>
        element("li", {}, ago(event.at), element("span", {}, `${event.status}: ${event.text}`)),
      ),
    ),
    element("p", { class: "note" }, [worker.host, `heard ${duration(worker.seen_seconds_ago)} ago`, versions].filter(Boolean).join(" · ")),
  );
}

function counted(items) {
  const numbers = new Map();
  for (const { status } of items) numbers.set(status, (numbers.get(status) || 0) + 1);
  return [...numbers].map(([status, count]) => element("span", {}, `${count} ${status}`));
}

async function refresh() {
  const { items } = await all("workers");
  const urgent = (worker) => (["quarantined", "lost"].includes(worker.status) ? 0 : 1);
  const ordered = [...items].sort((a, b) => urgent(a) - urgent(b) || a.name.localeCompare(b.name));
  replaceRows(node("workers"), ordered.map(card));
  node("facts").replaceChildren(...counted(items));
  node("empty").hidden = items.length > 0;
}

refresh().catch(say);
repeat(refresh, 3000);
