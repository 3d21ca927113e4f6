// The record of steering acts, newest first: who did what, to what, and how it was before and after.

import { ago, base, call, element, say } from "./api.js";

const node = (name) => document.getElementById(name);
let next = null;

function link(target) {
  return target.startsWith("exp_") ? element("a", { href: `${base}/experiments/${target}` }, target) : target;
}

function values(found) {
  return found ? element("code", {}, Object.entries(found).map(([name, value]) => `${name}: ${JSON.stringify(value)}`).join(", ")) : "";
}

function row(act) {
  return element("tr", {},
    element("td", { "data-name": "" }, ago(act.at)), element("td", { "data-name": "", title: act.actor_id }, element("bdi", {}, act.actor)),
    element("td", { "data-name": "What" }, act.action), element("td", { "data-name": "To what" }, link(act.target)),
    element("td", { "data-name": "Before" }, values(act.before)), element("td", { "data-name": "After" }, values(act.after)));
}

async function load(more) {
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(node("filters"))) if (value.trim()) query.set(name, value.trim());
  if (more) query.set("cursor", next);
  const page = await call("GET", `audit?${query}`);
  const body = node("audit").tBodies[0];
  if (!more) body.replaceChildren();
  body.append(...page.items.map(row));
  ({ next } = page);
  node("more").hidden = next === null;
  node("empty").hidden = body.rows.length > 0;
}

node("filters").addEventListener("submit", (event) => { event.preventDefault(); load(false).catch(say); });
node("more").addEventListener("click", () => load(true).catch(say));
load(false).catch(say);
