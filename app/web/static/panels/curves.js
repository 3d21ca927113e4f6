// Learning curves: mean and 95 % band of each arm, replicates on demand, several metrics, one linked cursor.

import { armName, element, number, say } from "../api.js";
import { saveCsv, savePng, saveSvg } from "../export.js";
import { findTimes } from "./times.js";
import { KEPT, charts, drawChart, view } from "./chart.js";

const node = (name) => document.getElementById(name);

export function mount(store) {
  const again = () => drawAll(store);
  for (const [name, id] of [
    ["replicates", "replicates"],
    ["bands", "bands"],
    ["log", "log-y"],
  ])
    node(id).addEventListener("change", (event) => {
      view[name] = event.target.checked;
      again();
    });
  node("smoothing").addEventListener("input", (event) => {
    view.smoothing = Number(event.target.value);
    again();
  });
  node("axis").addEventListener("change", (event) => {
    view.axis = event.target.value;
    again();
  });
  store.on(["times"], again);
  node("metric").addEventListener("change", (event) => {
    view.metric = event.target.value;
    store.want(view.metric);
    again();
  });
  node("add-chart").addEventListener("change", (event) => {
    if (event.target.value) change(store, [...view.extra, event.target.value]);
    event.target.value = "";
  });
  node("chart-saves").append(...saves(store, "chart"));
  store.on(["experiment", "metrics", "points"], () => {
    offer(store);
    again();
  });
  store.on(["experiment"], () => legend(store, again));
  store.on(["open:curves", "open:overview"], again);
  new ResizeObserver(() =>
    charts.forEach((chart) => chart.plot && chart.plot.setSize({ width: chart.box.clientWidth, height: chart.height })),
  ).observe(node("chart"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    charts.forEach((chart) => {
      chart.shape = null;
    });
    again();
  });
}

// Buttons that save what a chart shows.
function saves(store, name) {
  const forms = { PNG: savePng, SVG: saveSvg, CSV: (seen) => saveCsv(store.id, seen) };
  const save = (act) => () => {
    const { plot, seen } = charts.get(name);
    if (plot && seen.xs.length) act(seen, plot);
    else say(new Error("there is no curve yet"));
  };
  return Object.entries(forms).map(([form, act]) =>
    element("button", { class: "quiet", type: "button", "aria-label": `${form} of ${name === "chart" ? "the chart" : name}`, onclick: save(act) }, form),
  );
}

function change(store, extra) {
  view.extra = [...new Set(extra)];
  localStorage.setItem(KEPT, JSON.stringify(view.extra));
  store.want(...view.extra.filter((metric) => store.recorded.has(metric)));
  drawAll(store);
}

function offer(store) {
  if (!store.experiment) return;
  const { primary, training } = store.experiment.shown;
  const names = [...new Set([primary, training, ...store.recorded])];
  for (const select of [node("metric"), node("add-chart")]) {
    const known = new Set([...select.options].map((option) => option.value));
    select.append(...names.filter((name) => !known.has(name)).map((name) => element("option", { value: name }, name)));
  }
  node("metric").value = metricOf(store);
  store.want(...view.extra.filter((metric) => store.recorded.has(metric)));
}

// Chosen when the page opens; a chart does not change under its reader.
export function metricOf(store) {
  if (!view.metric) {
    view.metric = store.leading;
    store.want(view.metric);
  }
  return view.metric;
}

function legend(store, again) {
  node("legend").replaceChildren(
    ...store.arms.map((label, arm) =>
      element(
        "button",
        {
          type: "button",
          "aria-pressed": String(!view.hidden.has(arm)),
          title: "click to hide or show",
          onclick: () => {
            if (!view.hidden.delete(arm)) view.hidden.add(arm);
            legend(store, again);
            again();
          },
        },
        armName(label, arm),
      ),
    ),
  );
}

function drawAll(store) {
  if (!store.experiment) return;
  if (view.axis === "time") [metricOf(store), ...view.extra].forEach((metric) => findTimes(store, metric).catch(say));
  const isAlone = node("tab-overview").classList.contains("only-curves");
  drawChart(store, "chart", node("chart"), metricOf(store), isAlone ? 480 : 320);
  const wanted = view.extra.filter((metric) => store.recorded.has(metric));
  const box = node("more-charts");
  for (const [name, chart] of charts)
    if (name !== "chart" && !wanted.includes(name)) {
      chart.plot && chart.plot.destroy();
      chart.frame.remove();
      charts.delete(name);
    }
  for (const metric of wanted) {
    if (!charts.has(metric)) {
      const inner = element("div", { class: "chart", style: { minHeight: "200px" } });
      const frame = element(
        "div",
        {},
        element(
          "h2",
          {},
          metric,
          " ",
          element(
            "button",
            {
              "aria-label": `remove ${metric}`,
              onclick: () =>
                change(
                  store,
                  view.extra.filter((one) => one !== metric),
                ),
            },
            "×",
          ),
          ...saves(store, metric),
        ),
        inner,
      );
      box.append(frame);
      charts.set(metric, { box: inner, frame });
    }
    drawChart(store, metric, charts.get(metric).box, metric, isAlone ? 280 : 200);
  }
  const { total, shown } = store.counted;
  node("shown").textContent = total
    ? `Showing ${number(shown)} of ${number(total)} points${shown < total ? ", in buckets" : ""}.`
    : `No point of ${metricOf(store)} yet.`;
}
