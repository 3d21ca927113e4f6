// Calls of the API, small DOM builders, and messages for people. Every URL derives from the base path.

export const base = document.querySelector('meta[name="lockstep-base"]').content;
export const over = (status) => ["succeeded", "failed", "cancelled", "partial"].includes(status);

export async function call(method, path, body, headers = {}) {
  const options = { method, headers: { ...headers } };
  if (body !== undefined) {
    options.body = typeof body === "string" ? body : JSON.stringify(body);
    options.headers["Content-Type"] = typeof body === "string" ? "application/yaml" : "application/json";
  }
  const response = await fetch(`${base}/api/v1/${path}`, options).catch(() => {
    throw new Unreachable("The server does not answer; this page goes on trying.");
  });
  if (response.status === 401) {
    const { detail = "" } = await response.json().catch(() => ({}));
    if (!detail.startsWith("no credentials")) sessionStorage.setItem("lockstep-refused", detail);
    location.href = `${base}/login?next=${encodeURIComponent(location.pathname + location.search + location.hash)}`;
    throw new Error("not authenticated");
  }
  if (!response.ok) throw new ApiError(await response.json().catch(() => ({ detail: `HTTP ${response.status}` })));
  return response.status === 204 ? null : response.json();
}

// Everything that a list of pages holds.
export async function all(path) {
  const items = [];
  for (let cursor = null; ;) {
    const page = await call("GET", cursor ? `${path}${path.includes("?") ? "&" : "?"}cursor=${encodeURIComponent(cursor)}` : path);
    items.push(...page.items);
    if (page.next === null) return { ...page, items };
    cursor = page.next;
  }
}

export class Unreachable extends Error {}

// One fault of a document: where, what, and how to mend it.
export const faultText = ({ pointer, message, remedy }) => `${pointer || "/"}: ${message}${remedy ? ` (${remedy})` : ""}`;

export class ApiError extends Error {
  constructor(problem) {
    super((problem.errors || []).map(faultText).join("\n") || problem.detail);
    this.problem = problem;
  }
}

export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function mark(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// A sentence whose names stand between backticks, as elements.
export function prose(text) {
  return text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));
}

export function badge(status) {
  return element("span", { class: `badge ${status}` }, status);
}

// The state of an experiment, without the colour of success beside an invalid report.
export function stateBadge({ status, answer }) {
  const found = badge(status);
  if (answer && answer.code === "INVALID") found.classList.replace("succeeded", "void");
  return found;
}

// The code of a verdict as words, with what takes its meaning away.
export function verdictWords(answer) {
  const words = answer.code.replaceAll("_", " ").toLowerCase();
  return answer.flags.includes("NOT_LEARNED") ? `${words}, not learned` : words;
}

export function armName(label, index) {
  return element(
    "span",
    {},
    element("span", { class: `swatch arm${index} dash${index > 1 ? 1 + (index % 2) : 0}`, "aria-hidden": "true" }),
    element("bdi", {}, label),
  );
}

export function say(error) {
  const box = document.getElementById("message");
  box.textContent = error.message || String(error);
  box.hidden = false;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => {
    box.hidden = true;
  }, 12000);
}

export function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function bytes(count) {
  const [size, unit] = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]].map(([unit, size]) => [count / size, unit])
    .find(([value]) => value >= 1) || [count, "bytes"];
  return `${number(size)} ${unit}`;
}

export function ago(text) {
  const seconds = (Date.now() - new Date(text)) / 1000;
  const told = seconds < 10 ? "just now" : `${duration(seconds)} ago`;
  return element("time", { datetime: text, title: new Date(text).toLocaleString() }, told);
}

// Numbers of replicates in words: "replicate 0", "replicates 0–5", "replicates 0, 3".
export function replicates(numbers) {
  numbers.sort((a, b) => a - b);
  const run = numbers.length > 2 && numbers[numbers.length - 1] - numbers[0] === numbers.length - 1;
  return numbers.length === 1
    ? `replicate ${numbers[0]}`
    : run
      ? `replicates ${numbers[0]}–${numbers[numbers.length - 1]}`
      : `replicates ${numbers.join(", ")}`;
}

export const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "+∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return grouped(String(value));
  const size = Math.abs(value);
  const places = size === 0 || size >= 100 ? 0 : Math.max(0, 2 - Math.floor(Math.log10(size)));
  return size >= 1e6 || (size > 0 && size < 1e-4) ? value.toExponential(2) : grouped(value.toFixed(places));
}

// A difference with its unit: shares differ by percentage points.
export function difference(value, unit) {
  return `${signed(value)} ${unit === "%" ? "pp" : unit}`.trim();
}

export function signed(value) {
  return value > 0 ? `+${number(value)}` : number(value).replace("-", "−");
}

function grouped(text) {
  return text.replace(/\B(?=(\d{3})+(?!\d)(?<!\.\d*))/g, "\u2009");
}

// Numbers of one column, with as many decimals as the one that needs most: "+10.0", "+9.97".
export function aligned(values) {
  const places = Math.max(0, ...values.filter(Number.isFinite).map((value) => (number(value).split(".")[1] || "").length));
  return values.map((value) => {
    if (!Number.isFinite(value) || /e/.test(number(value))) return signed(value);
    const text = grouped(Math.abs(value).toFixed(places));
    return `${value > 0 ? "+" : value < 0 ? "−" : ""}${text}`;
  });
}

// A name in a picture, where nothing wraps.
export function short(label, most = 20) {
  return label.length > most ? `${label.slice(0, most - 1)}…` : label;
}
