// Shows one completion: reasoning, text, calls, steps, numbers.

class CompletionView {
  constructor(lane) {
    Object.assign(this, { lane, scheduled: false, touched: false, over: false, notes: 0, chosen: null });
    this.writer = new LaneWriter(lane);
    this.title = make("h2", {}, lane.shown);
    this.thought = make("div", { class: "text" });
    this.summary = make("summary", {}, "Reasoning");
    this.summary.addEventListener("click", () => (this.touched = true));
    this.details = make("details", { class: "thought", hidden: "" }, this.summary, this.thought);
    this.text = make("div", { class: "text" });
    this.callList = make("div");
    this.player = new StepPlayer(lane.steps, (number) => this.showStep(number));
    this.numbers = make("p", { class: "numbers muted" });
    this.actions = make("div", { class: "actions" });
    this.below = make("div", { class: "below" });
    this.root = make("article", { class: "completion", "aria-busy": "true", "aria-label": `Answer with ${lane.shown}` }, this.title);
    this.root.append(this.details, this.text, this.callList, this.player.root, this.numbers, this.actions, this.below);
    const { map } = this.writer;
    const origin = (step, piece) => lane.steps[step]?.pieces?.[piece]?.[0] ?? "bonus";
    this.markdown = new MarkdownView(this.text, tokenPainter(map, "content", origin));
    this.thoughtMarkdown = new MarkdownView(this.thought, tokenPainter(map, "reasoning", origin));
    this.sent = { content: 0, reasoning: 0, steps: 0 };
    for (const element of [this.text, this.thought]) {
      this.followPointer(element);
      followKeys(element, (token) => this.tell(token), (token) => this.player.choose(Number(token.dataset.s)));
    }
  }

  /** Add a chunk of the stream. */
  take(chunk) {
    this.writer.take(chunk);
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => this.draw());
  }

  draw(whole = false) {
    this.scheduled = false;
    const { lane, sent } = this;
    for (const [part, view] of [["reasoning", this.thoughtMarkdown], ["content", this.markdown]]) {
      view.append(lane[part].slice(sent[part]));
      sent[part] = lane[part].length;
    }
    if (lane.reasoning) {
      this.details.hidden = false;
      if (!this.touched) this.details.open = lane.finish === null && !lane.content && !lane.calls.length;
      this.summary.textContent = lane.content || lane.finish ? "Reasoning" : "Reasoning\u2026";
      this.thoughtMarkdown.draw(whole);
    }
    this.markdown.draw(whole);
    this.drawCalls();
    for (; sent.steps < lane.steps.length; sent.steps += 1) this.player.add(sent.steps);
    this.root.classList.toggle("drafted", lane.steps.some((step) => step.drafted || step.injected));
    this.numbers.textContent = [...measured(lane), ...(this.over ? facts(lane) : [])].join(" · ");
    this.root.dispatchEvent(new CustomEvent("drawn", { bubbles: true }));
  }

  drawCalls() {
    this.lane.calls.forEach((call, index) => {
      const shown = this.callList.children[index] ?? this.callList.appendChild(callNode());
      shown.querySelector("h3").textContent = call.name;
      shown.querySelector("code").textContent = this.over ? prettyJson(call.arguments) : call.arguments;
    });
  }

  /** Show the end: `finish` replaces the reason of the server, as after a stop. */
  end(finish = null) {
    this.lane.finish = finish ?? this.lane.finish ?? "error";
    this.over = true;
    this.draw(true);
    setTokenStops(this.root);
    this.player.end();
    for (const note of this.lane.notes) this.below.append(make("p", { class: "note" }, `Recovery: ${note}`));
    if (this.lane.problem) this.below.append(make("p", { class: "error", role: "alert" }, this.lane.problem));
    this.root.setAttribute("aria-busy", "false");
  }

  /** Show an error below what has arrived. */
  fail(message) {
    this.lane.problem = message;
    this.end("error");
  }

  /** Show the text as it was after a step: its tokens are marked, later ones dimmed; null shows all alike. */
  showStep(number) {
    this.root.classList.toggle("scrubbing", number !== null);
    for (const token of this.root.querySelectorAll(".text .t")) {
      const step = Number(token.dataset.s);
      token.classList.toggle("now", step === number);
      token.classList.toggle("later", number !== null && step > number);
    }
    const now = this.root.querySelector(".text .t.now");
    if (now && this.details.contains(now)) this.details.open = true;
    now?.scrollIntoView({ block: "nearest" });
  }

  /** Show where a token came from while the pointer is on it; a click chooses its step. */
  followPointer(element) {
    const tokenAt = (event) => event.target.closest?.(".t");
    element.addEventListener("pointerover", (event) => {
      const token = tokenAt(event);
      if (token && document.body.classList.contains("origins")) this.tell(token);
    });
    element.addEventListener("pointerleave", () => tip.hide());
    element.addEventListener("click", (event) => {
      const token = tokenAt(event);
      const free = getSelection().isCollapsed && !event.target.closest("a, button, summary");
      if (!token || !free || !this.over || !document.body.classList.contains("origins")) return;
      this.player.choose(Number(token.dataset.s));
      this.tell(token);
    });
  }

  tell(token) {
    const { s, p } = token.dataset;
    tip.show(token, Number(s), this.lane.steps[s], Number(p));
  }
}

/** Return an empty box for a tool call. */
function callNode() {
  const name = make("h3");
  return make("section", { class: "call", "aria-label": "Tool call" }, name, make("pre", { tabindex: "0" }, make("code")));
}

/** Return JSON with line breaks and indents; text that is no JSON stays as it is. */
function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
