// A list that is read again every few seconds; a server that does not answer is told once, at the top of the page.

import { Unreachable, say } from "./api.js";

export function repeat(refresh, milliseconds, isWanted = () => true) {
  const box = document.getElementById("connection");
  let isAway = false;
  const show = (away) => {
    if (away !== isAway) box.textContent = away ? `reconnecting since ${new Date().toLocaleTimeString()}` : "";
    box.classList.toggle("reconnecting", away);
    isAway = away;
  };
  setInterval(async () => {
    if (document.hidden || !isWanted()) return;
    try {
      await refresh();
      show(false);
    } catch (error) {
      if (error instanceof Unreachable) show(true);
      else say(error);
    }
  }, milliseconds);
}
