// Exchange a token for an HttpOnly session cookie, then go where the visitor was going. Says what was wrong.

import { base } from "./api.js";

const node = (name) => document.getElementById(name);
const given = new URLSearchParams(location.search);

// Only a page of this server: never another site, whatever the address says.
function next() {
  const wanted = given.get("next") || `${base}/`;
  const inside = wanted.startsWith("/") && !wanted.startsWith("//") && !wanted.includes("\\");
  return inside && new URL(wanted, location.href).origin === location.origin ? wanted : `${base}/`;
}

function shape(token) {
  if (!token) return "Paste a token first.";
  if (/\s/.test(token)) return "There is a space or a line break inside of the token: copy it alone.";
  if (!token.startsWith("lsk_")) return "This is no token of Lockstep: they begin with lsk_.";
  return token.length < 20 ? "The token is cut short: copy all of it." : null;
}

async function refusal(response) {
  const problem = await response.json().catch(() => ({ detail: "" }));
  if (response.status === 401) {
    return problem.detail.includes("expired")
      ? "This token has expired or was revoked: ask an operator for a new one."
      : "This token is not known here: was it made on another server?";
  }
  if (response.status === 403)
    return `This token may not read pages: ${problem.detail}. Ask for one with the role viewer.`;
  if (response.status === 429) return `${problem.detail}.`;
  if (response.status === 503) return "The database does not answer just now: try again in a moment.";
  return `The server refused (${response.status}): ${problem.detail}`;
}

async function logIn(token) {
  const response = await fetch(`${base}/api/v1/session`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ token }),
  });
  if (!response.ok) return refusal(response);
  const mine = await fetch(`${base}/api/v1/session`);
  if (mine.status === 401)
    return "The browser did not keep the cookie: allow cookies of this site, and open it by https where the server is behind it.";
  return mine.ok ? null : refusal(mine);
}

node("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = node("token").value.trim();
  let wrong = shape(token);
  try {
    wrong = wrong || (await logIn(token));
  } catch {
    wrong = "The server does not answer: is it running, and is this machine still on the network?";
  }
  node("wrong").textContent = wrong || "";
  node("token").toggleAttribute("aria-invalid", Boolean(wrong));
  if (wrong) node("token").focus();
  else location.href = next();
});

if (given.get("next")) {
  const why = sessionStorage.getItem("lockstep-refused");
  sessionStorage.removeItem("lockstep-refused");
  node("why").textContent = why
    ? `You were logged out: ${why}.`
    : "The page that you opened needs a token; you go on to it from here.";
  node("why").hidden = false;
}
node("token").focus();
