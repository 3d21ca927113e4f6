// The end of a session.

import { base, call, say } from "./api.js";

document.getElementById("log-out").addEventListener("click", async () => {
  try {
    await call("DELETE", "session");
    location.href = `${base}/login`;
  } catch (error) {
    say(error);
  }
});
