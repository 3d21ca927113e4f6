// What is written down: the specification with the commands that repeat it, and the report.

import { base, element, say } from "../api.js";
import { yaml } from "../yaml.js";

const node = (name) => document.getElementById(name);

export function specification(store) {
  store.on(["experiment"], () => {
    const { spec, shown, spec_hash } = store.experiment;
    node("spec").textContent = yaml(spec);
    node("spec-hash").textContent = spec_hash;
    const api = `${location.origin}${base}/api/v1/experiments/${store.id}`;
    node("calls").textContent = [
      `curl ${api}`,
      `curl '${api}/series?metrics=${shown.primary}'`,
      `curl '${api}/report?format=md'`,
      `lockstep submit spec.yaml  # the specification above, once more`,
      `lockstep watch ${store.id}`,
      `lockstep export ${store.id}`,
      `lockstep clone ${store.id}`,
    ].join("\n");
    node("python").textContent =
      `from lockstep import Client\n\nwith Client("${location.origin}${base}") as client:\n    report = client.report("${store.id}")\n    again = client.clone("${store.id}")  # the same specification once more`;
  });
  for (const button of document.querySelectorAll("[data-copy]"))
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(node(button.dataset.copy).textContent);
        button.textContent = "Copied";
      } catch (error) {
        say(error);
      }
    });
}

export function report(store) {
  const show = () => {
    const there = store.experiment.answer !== null;
    node("no-report").hidden = there;
    node("report-links").hidden = node("report").hidden = !there;
    if (!there) return;
    const at = (format) => `${base}/api/v1/experiments/${store.id}/report?format=${format}`;
    node("report-links").replaceChildren(
      "Save as: ",
      ...["html", "md", "json", "csv", "py"].flatMap((format) => [element("a", { href: at(format) }, format), " "]),
    );
    const version = store.experiment.answer.sentence;
    if (node("report").dataset.version === version) return;
    node("report").dataset.version = version;
    node("report").src = at("html");
  };
  const fit = () => {
    const inside = node("report").contentDocument?.documentElement; // none while a report is being loaded
    if (inside) node("report").style.height = `${inside.scrollHeight + 20}px`;
  };
  node("report").addEventListener("load", fit);
  window.addEventListener("resize", fit); // comes when a part is opened, too: hidden, it has no height
  store.on(["experiment", "open:report"], show);
}
