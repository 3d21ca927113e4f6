// Calls of the API, small DOM builders, and messages for people. Every URL derives from the base path.

export const base = document.querySelector('meta[name="lockstep-base"]').content;

// One colour per arm for life, by its position in the spec: the same on every page and in the report.
export const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#a5538a", "#6b5b00", "#3a86c8", "#7a7a7a", "#8c3b2f"];

export async function call(method, path, body, headers = {}) {
  const options = { method, headers: { ...headers } };
  if (body !== undefined) {
    options.body = typeof body === "string" ? body : JSON.stringify(body);
    options.headers["Content-Type"] = typeof body === "string" ? "application/yaml" : "application/json";
  }
  const response = await fetch(`${base}/api/v1/${path}`, options);
  if (response.status === 401) {
    location.href = `${base}/login`;
    throw new Error("not authenticated");
  }
  if (!response.ok) throw new ApiError(await response.json().catch(() => ({ detail: `HTTP ${response.status}` })));
  return response.status === 204 ? null : response.json();
}

export class ApiError extends Error {
  constructor(problem) {
    const lines = (problem.errors || []).map((e) => `${e.pointer || "/"}: ${e.message}${e.remedy ? ` (${e.remedy})` : ""}`);
    super(lines.join("\n") || problem.detail);
    this.problem = problem;
  }
}

export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name === "style") Object.assign(node.style, value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function badge(status) {
  return element("span", { class: `badge ${status}` }, status);
}

export function say(error) {
  const box = document.getElementById("message");
  box.textContent = error.message || String(error);
  box.hidden = false;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { box.hidden = true; }, 12000);
}

export function when(text) {
  return new Date(text).toLocaleString();
}
