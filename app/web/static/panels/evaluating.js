// How far a long evaluation is has no frame of its own: it is asked for while nothing else comes.

import { call } from "../api.js";

const QUIET_MS = 10000;

export function mount(store) {
  let heard = Date.now();
  store.on(["rounds", "points", "event"], () => {
    heard = Date.now();
  });
  setInterval(async () => {
    if (document.hidden || store.experiment?.status !== "running" || Date.now() - heard < QUIET_MS) return;
    try {
      store.experiment = await call("GET", `experiments/${store.id}`);
      store.tell("experiment");
    } catch {
      // the connection's badge says it
    }
  }, QUIET_MS);
}
