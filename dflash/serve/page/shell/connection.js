// Whether the server is there: the loading screen, and the note while it is gone. It goes on by itself.

const POLL_MS = 1000;
const MAX_POLL_MS = 8000;

/** Watches `/health` until the server is ready; `onReady` runs each time it becomes so. */
class Connection {
  constructor(onReady) {
    Object.assign(this, { onReady, state: "unknown", timer: null, wait: POLL_MS });
    this.root = byId("connection");
    byId("connection-retry").addEventListener("click", () => this.check());
    addEventListener("online", () => this.check());
    document.addEventListener("visibilitychange", () => document.hidden || this.state === "ready" || this.check());
  }

  get ready() {
    return this.state === "ready";
  }

  /** Ask the server how it is, and again later until it is ready. */
  async check() {
    clearTimeout(this.timer);
    const before = this.state;
    const { state, body } = await this.ask();
    this.state = state;
    this.show(body);
    if (state === "ready") {
      this.wait = POLL_MS;
      if (before !== "ready") await this.onReady(before);
      return;
    }
    this.wait = state === "loading" ? POLL_MS : Math.min(this.wait * 1.5, MAX_POLL_MS);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), this.wait);
  }

  async ask() {
    try {
      const response = await fetch("/health", { cache: "no-store" });
      const body = await response.json().catch(() => ({}));
      if (body.status === "loading model") return { state: "loading", body };
      return { state: response.ok || response.status === 404 ? "ready" : "failed", body };
    } catch {
      return { state: "offline", body: {} };
    }
  }

  /** Take note of a request that failed. */
  failed({ kind }) {
    if (kind !== "offline" && kind !== "loading" && kind !== "cut") return;
    this.check();
  }

  show(body) {
    const { state } = this;
    this.root.hidden = state === "ready";
    document.body.dataset.server = state;
    const titles = { loading: "The model is loading", offline: "The server does not answer", failed: "The server has a problem" };
    const texts = {
      loading: "This page goes on by itself. The first start on a machine compiles kernels, which takes about a minute.",
      offline: "Is it still running? The page tries again by itself, and your conversations stay in this browser.",
      failed: body.error ?? "Its engine does not answer. See the log of the server.",
    };
    if (this.root.hidden) return;
    byId("connection-title").textContent = titles[state] ?? "";
    byId("connection-text").textContent = texts[state] ?? "";
    const { stage, kernels, seconds } = body;
    const parts = [stage, kernels && `${kernels.done} of ${counted(kernels.all, "kernel")} compiled`, seconds && `${Math.round(seconds)} s so far`];
    byId("connection-stage").textContent = parts.filter(Boolean).join(" \u00b7 ");
    byId("connection-retry").hidden = state === "loading";
  }
}
