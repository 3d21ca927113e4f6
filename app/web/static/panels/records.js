// What happened and what was written: timeline by kind, runs, logs, specification, artifacts, report.

import { ago, all, armName, badge, base, bytes, call, element, number, prose, say } from "../api.js";

const node = (name) => document.getElementById(name);
const NOISE = /(round|update|evaluation)_completed$|^checkpoint_saved$/; // what every round brings
const KINDS = {
  states: (event) => event.env_id === null && !NOISE.test(event.type),
  trouble: (event) => ["warning", "error"].includes(event.severity),
  everything: () => true,
};

export function timeline(store) {
  const items = [];
  const draw = () => {
    const kept = items.filter(KINDS[node("timeline-kind").value]).slice(-500).reverse();
    node("timeline").replaceChildren(...kept.map(line));
    if (!kept.length) node("timeline").append(element("li", { class: "empty" }, "Nothing of this kind."));
  };
  node("timeline-kind").addEventListener("change", draw);
  store.on(["event"], () => {
    if (store.newest && !items.some((event) => event.seq === store.newest.seq)) items.push(store.newest);
    draw();
  });
  store.on(["open:events"], async () => {
    try {
      items.splice(0, items.length, ...(await allEvents(store.id)));
      draw();
    } catch (error) {
      say(error);
    }
  });
}

// Every event: the newest ones are at the end, so all pages are read.
async function allEvents(id) {
  const found = [];
  for (let after = null; ;) {
    const page = await call(
      "GET",
      `experiments/${id}/events?limit=2000${after ? `&after=${encodeURIComponent(after)}` : ""}`,
    );
    found.push(...page.items);
    if (page.items.length < 2000) return found;
    after = page.next;
  }
}

function line(event) {
  const place = [
    event.replicate === null ? null : `replicate ${event.replicate}`,
    event.group_id === "*" ? null : event.group_id,
  ]
    .filter(Boolean)
    .join(", ");
  return element(
    "li",
    { class: event.severity },
    ago(event.time),
    element("span", {}, ...prose(event.text), " ", element("small", {}, [place, event.actor].filter(Boolean).join(" · "))),
  );
}

export function runs(store) {
  store.on(["experiment"], () => {
    const all = [...store.runs.values()].sort((a, b) => a.replicate - b.replicate);
    node("runs").tBodies[0].replaceChildren(
      ...all.map((run) =>
        element(
          "tr",
          {},
          element("td", { "data-name": "Replicate" }, String(run.replicate)),
          element("td", { "data-name": "" }, armName(run.group_id, store.arms.indexOf(run.group_id))),
          element("td", { "data-name": "" }, badge(run.status), run.cause ? ` ${run.cause}: ${run.cause_text}` : ""),
          element("td", { class: "number", "data-name": "Rounds" }, `${run.rounds_done} / ${store.experiment.rounds}`),
          element("td", { "data-name": "Device" }, run.device || ""),
          element(
            "td",
            { class: "number", "data-name": "On device" },
            run.device_seconds ? `${number(run.device_seconds)} s` : "",
          ),
          element(
            "td",
            {},
            element(
              "button",
              {
                onclick: () => {
                  store.wantedLog = run.id;
                  location.hash = "log";
                  store.tell("log");
                },
              },
              "Log",
            ),
          ),
          element("td", {}, element("code", {}, run.id)),
        ),
      ),
    );
    const choice = node("log-run");
    if (choice.options.length !== all.length)
      choice.replaceChildren(
        ...all.map((run) => element("option", { value: run.id }, `replicate ${run.replicate}, ${run.group_id}`)),
      );
  });
  store.on(["open:runs"], async () => {
    try {
      const { items } = await all(`experiments/${store.id}/artifacts`);
      node("artifacts").replaceChildren(
        ...items.map((item) =>
          element(
            "li",
            {},
            element("a", { href: `${base}/api/v1/artifacts/${item.id}/content` }, `${item.kind} ${item.name}`),
            element(
              "small",
              {},
              ` ${bytes(item.size_bytes)}, ${(store.runs.get(item.run_id) || {}).group_id || ""}`,
            ),
          ),
        ),
      );
      if (!items.length) node("artifacts").append(element("li", { class: "empty" }, "No stored file yet."));
    } catch (error) {
      say(error);
    }
  });
}

// Colour codes of terminals are taken out; what is searched for stands alone.
export function logs(store) {
  let lines = [];
  const ESCAPES = new RegExp(`${String.fromCharCode(27)}\\[[0-9;?]*[A-Za-z]`, "g");
  const draw = () => {
    const wanted = node("log-search").value.toLowerCase();
    const kept = lines.filter((one) => !wanted || one.text.toLowerCase().includes(wanted));
    node("log").textContent = kept.map((one) => one.text.replace(ESCAPES, "")).join("\n") || "no lines";
    if (node("log-follow").checked) node("log").scrollTop = node("log").scrollHeight;
  };
  const load = async () => {
    if (!node("log-run").value) return;
    try {
      lines = (await call("GET", `runs/${node("log-run").value}/logs?level=${node("log-level").value}&tail=2000`))
        .items;
      draw();
    } catch (error) {
      say(error);
    }
  };
  for (const name of ["log-run", "log-level"]) node(name).addEventListener("change", load);
  node("log-search").addEventListener("input", draw);
  store.on(["open:log", "log"], () => {
    if (store.wantedLog) node("log-run").value = store.wantedLog;
    store.wantedLog = null;
    load();
  });
  setInterval(() => {
    if (node("log-follow").checked && !node("tab-log").hidden && !document.hidden && !store.isOver) load();
  }, 3000);
}
