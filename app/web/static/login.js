// Exchange a token for an HttpOnly session cookie, then go where the visitor was going.

import { base, say } from "./api.js";

document.getElementById("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const response = await fetch(`${base}/api/v1/session`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token: event.target.elements.token.value.trim() }),
    });
    if (response.status === 401) throw new Error("This token is not known here, or was revoked. Ask an operator for a new one.");
    if (!response.ok) throw new Error((await response.json().catch(() => ({}))).detail || `The server refused (${response.status}).`);
    const next = new URLSearchParams(location.search).get("next") || `${base}/`;
    location.href = next.startsWith("/") && !next.startsWith("//") ? next : `${base}/`;
  } catch (error) { say(error); }
});
