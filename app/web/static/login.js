// Exchange a token for an HttpOnly session cookie.

import { base, call, say } from "./api.js";

document.getElementById("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await call("POST", "session", { token: event.target.elements.token.value });
    location.href = `${base}/`;
  } catch (error) { say(error); }
});
