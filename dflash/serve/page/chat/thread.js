// The conversation on the screen: turns, tool results, edits, and its place in the store.

const SAVE_MS = 1500;

class Thread {
  constructor(settings, store, connection) {
    Object.assign(this, { settings, store, connection, running: null, saving: null, views: [] });
    this.log = byId("log");
    this.log.addEventListener("drawn", () => this.follow());
    new ResizeObserver(() => this.follow()).observe(this.log);
    this.onSaved = () => {};
    this.show(null);
  }

  get items() {
    return this.conversation.items;
  }

  /** Show a conversation; null begins a new one. What runs in another one is stopped and kept. */
  show(conversation) {
    this.stop();
    this.conversation = conversation ?? { id: newId(), title: "", changed: 0, revision: 0, items: [] };
    this.results = null;
    this.redraw();
    showStatus("");
    this.log.scrollTop = this.log.scrollHeight;
  }

  redraw() {
    tip.hide();
    byId("welcome").hidden = this.items.length > 0;
    this.log.replaceChildren(byId("welcome"), ...this.items.map((item) => this.nodeOf(item)));
    const last = this.items.at(-1);
    if (last?.kind === "answer" && last.lanes[0].finish === "tool_calls") this.askResults(last);
  }

  /** Return the node of an item as it was saved. */
  nodeOf(item) {
    if (item.kind === "user") return new UserView(item, (text) => this.edit(item, text)).root;
    if (item.kind === "results") return resultsNode(item.results);
    const views = item.lanes.map((lane) => new CompletionView(lane));
    const node = this.lanesNode(item, views);
    for (const view of views) view.end(view.lane.finish ?? "interrupted");
    this.finishTurn(item, views, node);
    return node;
  }

  lanesNode(item, views) {
    const node = make("div", { class: views.length > 1 ? "lanes" : "lane" }, ...views.map((view) => view.root));
    Object.assign(item, { [VIEWS]: views });
    return node;
  }

  /** Stop what is running. */
  stop() {
    this.running?.abort();
  }

  /** Add a message of the user and run a turn; results of tools that were typed before are sent with it. */
  say(text, files = []) {
    if (this.running || !this.mayRun()) return false;
    this.takeResults();
    this.add({ kind: "user", text, files });
    this.turning = this.turn();
    return true;
  }

  /** True if a request can be sent now; else the reason is shown. */
  mayRun() {
    try {
      this.settings.fields();
      if (this.connection.state === "loading") throw new Error(LOADING);
      return true;
    } catch (error) {
      showStatus(error.message, true);
      return false;
    }
  }

  add(item) {
    this.items.push(item);
    byId("welcome").hidden = true;
    this.log.append(this.nodeOf(item));
    this.log.scrollTop = this.log.scrollHeight;
  }

  /** Run one turn: a completion for each strategy, at the same time. The first one continues the conversation. */
  async turn() {
    const { conversation, settings } = this;
    const names = settings.strategies();
    const request = { ...settings.fields(), messages: [...settings.system(), ...messagesOf(this.items)] };
    if (names.length > 1) request.cache_prompt = false;
    const lanes = names.map((name) => ({ ...newLane(name, name || settings.offer.strategy), shared: names.length > 1 }));
    const item = { kind: "answer", lanes };
    const views = lanes.map((lane) => new CompletionView(lane));
    const node = this.lanesNode(item, views);
    this.items.push(item);
    this.log.append(node);
    this.log.scrollTop = this.log.scrollHeight;
    const saving = this.saveOften(conversation);
    await this.run((signal) => Promise.all(views.map((view) => this.fill(view, request, signal))));
    clearTimeout(saving.timer);
    saving.over = true;
    this.save(conversation);
    if (this.conversation !== conversation) return;
    this.finishTurn(item, views, node, request);
    if (lanes.some((lane) => lane.finish === "error")) showStatus("The answer failed.");
    if (lanes[0].finish === "tool_calls") this.askResults(item);
    this.follow();
  }

  /** Stream a completion into its view; errors are shown there. */
  async fill(view, request, signal) {
    try {
      await streamInto(request, view.lane.strategy, signal, (chunk) => view.take(chunk));
      view.end();
    } catch (error) {
      if (signal.aborted) return view.end("stopped");
      if (!(error instanceof RequestFailed)) console.warn(error);
      view.fail(error.message);
      if (error instanceof RequestFailed) this.connection.failed(error);
    }
  }

  /** Add what can be done with an answer that has ended. `request` is null for one that was saved. */
  finishTurn(item, views, node, request = null) {
    const [first, second] = views;
    for (const view of views) {
      const { lane } = view;
      if (lane.content) view.actions.append(copyButton("Copy answer", () => lane.content));
    }
    const failed = first.lane.finish === "error" || first.lane.finish === "interrupted";
    if (failed) first.below.append(makeButton("Try again", () => this.again(item), { class: "again" }));
    else first.actions.append(iconButton("again", "Regenerate", () => this.again(item)));
    if (second && isWhole(first.lane) && isWhole(second.lane)) node.append(verdictNode(first.lane, second.lane));
    if (request) this.offerMeasurement(views.map((view) => view.lane), request, second ? node : first.below);
  }

  /** Offer to measure speeds with the machine to one completion at a time. */
  offerMeasurement([first, second], request, place) {
    if (!isWhole(first) || first.calls.length || first.rate === null) return;
    if (second) place.append(measureButton("Measure one after the other", this, request, [first, second]));
    else if (first.shown !== "plain" && this.settings.has("plain")) {
      place.append(measureButton("Measure against plain decoding", this, request, [first, { strategy: "plain", shown: "plain" }]));
    }
  }

  /** Run work that `stop` can end; return what went wrong, "" if nothing. */
  async run(work) {
    const controller = (this.running = new AbortController());
    let problem = "";
    showRunning(true);
    try {
      await work(controller.signal);
    } catch (error) {
      if (!controller.signal.aborted) problem = error.message;
    } finally {
      if (this.running === controller) {
        this.running = null;
        showRunning(false);
      }
      showStatus(controller.signal.aborted ? "Stopped." : "Answer finished.");
    }
    return problem;
  }

  /** Drop items from `index` on, with the chance to undo; an answer in which nothing had arrived is not missed. */
  drop(index) {
    const { conversation } = this;
    const dropped = conversation.items.splice(index);
    this.results = null;
    this.redraw();
    if (dropped.length === 1 && dropped[0].kind === "answer" && !assistantMessage(dropped[0].lanes[0])) return;
    const words = dropped.length > 1 ? "The messages after it were removed." : "The earlier answer was removed.";
    toast(words, async () => {
      if (this.conversation !== conversation) return;
      this.stop();
      await this.turning;
      conversation.items.splice(index, Infinity, ...dropped);
      this.redraw();
      this.save(conversation);
    });
  }

  /** Run a turn that `undo` can wait for. */
  begin() {
    this.turning = this.turn();
    byId("prompt").focus();
  }

  /** Answer again. */
  again(item) {
    if (this.running || !this.mayRun()) return;
    this.drop(this.items.indexOf(item));
    this.begin();
  }

  /** Send a changed message; what followed it goes. */
  edit(item, text) {
    if (this.running || !this.mayRun() || !(text || item.files?.length)) return;
    this.drop(this.items.indexOf(item));
    this.add({ ...item, text });
    this.begin();
  }

  /** Ask the user for the results of tool calls. */
  askResults(item) {
    const [view] = item[VIEWS];
    const { calls } = item.lanes[0];
    const fields = calls.map(() => make("textarea", { rows: "2" }));
    const submit = () => {
      if (this.running || !this.mayRun()) return;
      this.takeResults();
      this.begin();
    };
    fields.forEach((field, index) => onEnter(field, () => (index + 1 < fields.length ? fields[index + 1].focus() : submit())));
    const rows = calls.map((call, index) => make("label", {}, `Result of ${call.name}`, fields[index]));
    const form = make("div", { class: "results" }, ...rows, makeButton("Send results", submit, { class: "primary" }));
    view.below.append(form);
    this.results = () => {
      form.remove();
      this.add({ kind: "results", results: calls.map(({ id, name }, index) => ({ id, name, content: fields[index].value })) });
    };
    fields[0]?.focus();
    showStatus("Type the results of the tool calls, or another message.");
  }

  /** Move typed results into the conversation. */
  takeResults() {
    const { results } = this;
    this.results = null;
    results?.();
  }

  /** Save a conversation now and then; the longer a save takes, the rarer they are. */
  saveOften(conversation) {
    const saving = { timer: null, over: false };
    const again = async () => {
      const began = performance.now();
      this.save(conversation);
      await this.saving;
      if (!saving.over) saving.timer = setTimeout(again, Math.max(SAVE_MS, 20 * (performance.now() - began)));
    };
    saving.timer = setTimeout(again, 0);
    return saving;
  }

  /** Save a conversation, one save at a time; a browser that refuses is named once. */
  save(conversation) {
    if (!conversation.items.length) return;
    conversation.title ||= titleOf(conversation.items);
    conversation.changed = Date.now();
    this.saving = (this.saving ?? Promise.resolve()).then(() => this.store.put(conversation)).then(() => this.onSaved(conversation), () => {
      if (!this.refused) toast("This browser keeps no conversations; they are lost when the page is closed.");
      this.refused = true;
    });
  }

  /** Scroll to the end if the end was in view. */
  follow() {
    const { log } = this;
    if (log.scrollHeight - log.scrollTop - log.clientHeight < 160) log.scrollTop = log.scrollHeight;
  }
}

/** Key of an answer's views, which are no part of what is saved. */
const VIEWS = Symbol("views");

/** Return the node of typed results of tools. */
function resultsNode(results) {
  const rows = results.map(({ name, content }) => make("div", {}, make("h3", {}, name), make("pre", { tabindex: "0" }, content)));
  return make("section", { class: "call tool-results", "aria-label": "Results of tools" }, ...rows);
}
