// The conversation: turns, tool results, comparison of strategies, measurement against plain decoding.

class Conversation {
  constructor(settings) {
    this.settings = settings;
    this.log = byId("log");
    this.welcome = byId("welcome");
    this.log.addEventListener("drawn", () => this.follow());
    this.clear();
  }

  /** Forget everything. */
  clear() {
    this.stop();
    this.messages = [];
    this.results = null;
    this.log.replaceChildren(this.welcome);
    showStatus("");
  }

  /** Stop what is running. */
  stop() {
    this.running?.abort();
  }

  /** Add a message of the user and run a turn; results of tools that were typed before are sent with it. */
  async say(text) {
    if (this.running) return false;
    try {
      this.settings.fields();
    } catch (error) {
      showStatus(error.message);
      return false;
    }
    this.takeResults();
    this.messages.push({ role: "user", content: text });
    this.add(make("section", { class: "user", "aria-label": "You" }, text));
    this.turn();
    return true;
  }

  /** Run one turn: a completion for each strategy, at the same time. The first one continues the conversation. */
  async turn() {
    const { messages } = this;
    this.log.querySelectorAll(".again").forEach((button) => button.remove());
    const names = this.settings.strategies();
    const request = { ...this.settings.fields(), messages: [...this.settings.system(), ...this.messages] };
    if (names.length > 1) request.cache_prompt = false;
    const views = names.map((name) => new CompletionView(name, name || this.settings.offer.strategy));
    const lanes = make("div", { class: views.length > 1 ? "lanes" : "lane" }, ...views.map((view) => view.root));
    this.add(lanes);
    await this.run(async (signal) => {
      await Promise.all(views.map((view) => this.fill(view, request, signal)));
    });
    if (this.messages !== messages) return;
    const [first, second] = views;
    if (second && first.ended && second.ended) lanes.append(comparison(first, second));
    if (views.some((view) => view.finish === "error")) showStatus("The request failed.");
    if (first.finish === "error") this.offerAgain(first, lanes);
    else this.continueFrom(first);
    if (!second && first.ended && !first.calls.length) this.offerMeasurement(first, request);
    this.follow();
  }

  /** Make a completion part of the conversation. */
  continueFrom(view) {
    const message = view.message();
    if (message) this.messages.push(message);
    if (message?.tool_calls) this.askResults(view, message.tool_calls);
  }

  /** Stream a completion into its view; errors are shown there. */
  async fill(view, request, signal) {
    try {
      await stream(view, request, signal);
      view.end();
    } catch (error) {
      if (signal.aborted) view.end("stopped");
      else view.fail(error.message);
    }
  }

  /** Offer to run the turn of a failed completion again. */
  offerAgain(view, lanes) {
    const button = makeButton("Try again", () => {
      if (this.running) return;
      lanes.remove();
      this.turn();
      byId("prompt").focus();
    });
    button.className = "again";
    view.below.append(button);
  }

  /** Run work that `stop` can end. */
  async run(work) {
    const controller = (this.running = new AbortController());
    showRunning(true);
    try {
      await work(controller.signal);
    } finally {
      this.running = null;
      showRunning(false);
      showStatus(controller.signal.aborted ? "Stopped." : "Done.");
    }
  }

  /** Ask the user for the results of tool calls. */
  askResults(view, calls) {
    const fields = calls.map(() => make("textarea", { rows: "2" }));
    const submit = () => {
      if (this.running) return;
      this.takeResults();
      this.turn();
      byId("prompt").focus();
    };
    fields.forEach((field, index) => onEnter(field, () => (index + 1 < fields.length ? fields[index + 1].focus() : submit())));
    const rows = calls.map((call, index) => make("label", {}, `Result of ${call.function.name}`, fields[index]));
    const form = make("div", { class: "results" }, ...rows, makeButton("Send results", submit));
    view.below.append(form);
    this.results = () => {
      calls.forEach((call, index) => {
        this.messages.push({ role: "tool", tool_call_id: call.id, content: fields[index].value });
        fields[index].readOnly = true;
      });
      form.lastChild.remove();
    };
    fields[0].focus();
    showStatus("Type the results of the tool calls, or another message.");
  }

  /** Move typed results into the conversation. */
  takeResults() {
    this.results?.();
    this.results = null;
  }

  /** Offer to run the same request with plain decoding, for the ratio of the speeds. */
  offerMeasurement(view, request) {
    if (view.shown === "plain" || view.strip.rate === null || !this.settings.has("plain")) return;
    const button = makeButton("Measure plain decoding", async () => {
      if (this.running) return;
      button.disabled = true;
      const plain = new CompletionView("plain", "plain");
      button.after(plain.numbers);
      await this.run((signal) => this.fill(plain, { ...request, cache_prompt: false }, signal));
      plain.numbers.remove();
      button.disabled = false;
      if (plain.finish === "error") button.after(...plain.below.childNodes);
      if (plain.ended && plain.strip.rate !== null) button.replaceWith(make("p", { class: "note" }, ratio(view, plain)));
      byId("prompt").focus();
    });
    view.below.append(button);
  }

  add(element) {
    this.welcome.remove();
    this.log.append(element);
    this.log.scrollTop = this.log.scrollHeight;
  }

  /** Scroll to the end if the end was in view. */
  follow() {
    const { log } = this;
    if (log.scrollHeight - log.scrollTop - log.clientHeight < 160) log.scrollTop = log.scrollHeight;
  }
}

/** Send a request with the strategy of a view and pass every chunk to the view. */
async function stream(view, request, signal) {
  const body = { ...request, stream: true, stream_options: { include_usage: true }, dflash: { steps: true } };
  if (view.strategy) body.strategy = view.strategy;
  const response = await send("/v1/chat/completions", body, signal);
  for await (const chunk of eventsOf(response)) view.take(chunk);
}

/** Return the note below two completions. */
function comparison(first, second) {
  const same = first.equals(second);
  const text = same ? "The texts are identical." : "The texts differ. The conversation continues with the first.";
  return make("p", { class: "note verdict", role: "status" }, `${text} Both ran at the same time and shared the machine.`);
}

/** Describe a completion's speed against plain decoding. */
function ratio(view, plain) {
  const times = (view.strip.rate / plain.strip.rate).toFixed(2);
  const same = view.equals(plain) ? "same text" : "another text";
  return `Plain decoding: ${plain.strip.rate.toFixed(1)} tok/s. ${view.shown} has ${times} times its speed; ${same}.`;
}
