// One WebSocket with full-jitter back-off and a cursor: nothing is fetched twice, nothing is missed.
// A closed socket never means finished; only the frame "end" does. Where sockets are dropped before the server has
// said anything, as some proxies do, the same frames come as server-sent events.

import { base } from "./api.js";

const BACKOFF = { least: 500, most: 30000, stable: 30000 };
const DROPS = 2;
const FRAMES = ["snapshot", "delta", "status", "lagged", "truncate", "resync", "end"];

export class Live {
  constructor(experimentId, onFrame, onState) {
    this.id = experimentId;
    this.onFrame = onFrame;
    this.onState = onState;
    this.cursor = null;
    this.metrics = [];
    this.failures = 0;
    this.drops = 0;
    document.addEventListener("visibilitychange", () => this.onVisibility());
  }

  subscribe(metrics) {
    this.metrics = metrics;
    this.cursor = null;
    if (this.socket && this.socket.readyState === WebSocket.OPEN) this.send();
    else this.connect();
  }

  connect() {
    clearTimeout(this.timer);
    this.leave();
    const url = new URL(`${base}/api/v1/experiments/${this.id}/ws`, location.href);
    if (this.drops >= DROPS) return this.listen(new URL("stream", url));
    url.protocol = url.protocol.replace("http", "ws");
    this.greeted = false;
    this.socket = new WebSocket(url);
    this.socket.onopen = () => {
      this.opened = Date.now();
      this.send();
    };
    this.socket.onmessage = (event) => this.receive(JSON.parse(event.data));
    this.socket.onclose = (event) => {
      if (!this.greeted) this.drops += 1;
      this.onClose(event);
    };
    return undefined;
  }

  listen(url) {
    for (const metric of this.metrics) url.searchParams.append("metrics", metric);
    if (this.cursor) url.searchParams.set("after", this.cursor);
    this.greeted = false;
    this.source = new EventSource(url);
    this.source.onopen = () => {
      this.opened = Date.now();
      this.greeted = true;
    };
    for (const kind of FRAMES) this.source.addEventListener(kind, (event) => this.receive(JSON.parse(event.data)));
    this.source.onerror = () => {
      if (!this.greeted) this.cursor = null;
      this.drops = 0; // a socket is tried again, in case the server itself was away
      this.leave();
      this.onClose({});
    };
  }

  leave() {
    if (this.socket) {
      this.socket.onclose = null;
      this.socket.close();
    }
    if (this.source) this.source.close();
    this.socket = this.source = null;
  }

  send() {
    this.socket.send(
      JSON.stringify({ type: "subscribe", protocol: 1, metrics: this.metrics, after: this.cursor, max_points: 1000 }),
    );
  }

  receive(frame) {
    if (frame.type === "ping") return this.socket.send('{"type":"pong"}');
    if (frame.type === "hello") {
      this.greeted = true;
      this.drops = 0;
      if (this.epoch && this.epoch !== frame.server_epoch) this.cursor = null;
      this.epoch = frame.server_epoch;
      return undefined;
    }
    if (frame.type === "resync" || frame.type === "lagged") return this.subscribe(this.metrics);
    if (frame.cursor) this.cursor = frame.cursor;
    this.onState("live");
    if (frame.type === "end" && this.source) this.leave(); // it would come back for more by itself
    return this.onFrame(frame);
  }

  onClose(event) {
    if (document.hidden) return this.onState("paused");
    if ([4401, 4403, 4404, 4409].includes(event.code)) return this.onState("stale", event.reason);
    if (event.code === 4400) this.cursor = null; // no cursor of this server: from a snapshot
    if (Date.now() - (this.opened || 0) > BACKOFF.stable) this.failures = 0;
    this.failures += 1;
    this.onState("reconnecting", `since ${new Date().toLocaleTimeString()}`);
    const most = Math.min(BACKOFF.most, BACKOFF.least * 2 ** this.failures);
    this.timer = setTimeout(() => this.connect(), BACKOFF.least + Math.random() * most);
    return undefined;
  }

  onVisibility() {
    if (document.hidden) {
      this.hiddenTimer = setTimeout(() => {
        this.leave();
        this.onState("paused");
      }, 60000);
      return;
    }
    clearTimeout(this.hiddenTimer);
    if (!this.source && (!this.socket || this.socket.readyState > WebSocket.OPEN)) this.connect();
  }
}
