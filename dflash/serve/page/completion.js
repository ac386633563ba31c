// One completion of the model: what has arrived so far, and the elements that show it.

class CompletionView {
  /** `strategy` is the name that was asked for; "" is the server's default, called `shown`. */
  constructor(strategy, shown) {
    Object.assign(this, { strategy, shown, content: "", reasoning: "", calls: [], notes: [] });
    Object.assign(this, { usage: null, finish: null, scheduled: false, touched: false, over: false });
    this.strip = new StepStrip();
    this.thought = make("div", { class: "text" });
    this.summary = make("summary", {}, "Reasoning");
    this.summary.addEventListener("click", () => (this.touched = true));
    this.details = make("details", { hidden: "" }, this.summary, this.thought);
    this.text = make("div", { class: "text" });
    this.callList = make("div");
    this.numbers = make("p", { class: "numbers muted" });
    this.below = make("div", { class: "below" });
    const title = make("h2", {}, shown);
    this.root = make("article", { class: "completion", "aria-busy": "true" }, title, this.details, this.text, this.callList);
    this.root.append(this.strip.root, this.strip.legend, this.numbers, this.below);
    this.markdown = new MarkdownView(this.text);
    this.thoughtMarkdown = new MarkdownView(this.thought);
  }

  /** Add a chunk of the stream. */
  take(chunk) {
    this.usage = chunk.usage ?? this.usage;
    this.notes.push(...(chunk.interventions ?? []));
    if (chunk.dflash) this.strip.add(chunk.dflash);
    const choice = chunk.choices?.[0];
    this.finish = choice?.finish_reason ?? this.finish;
    this.reasoning += choice?.delta?.reasoning_content ?? "";
    this.content += choice?.delta?.content ?? "";
    for (const part of choice?.delta?.tool_calls ?? []) this.takeCall(part);
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => this.draw());
  }

  takeCall(part) {
    this.calls[part.index] ??= { id: "", name: "", arguments: "" };
    const call = this.calls[part.index];
    call.id ||= part.id ?? "";
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }

  draw() {
    this.scheduled = false;
    if (this.reasoning) {
      this.details.hidden = false;
      if (!this.touched) this.details.open = this.finish === null && !this.content && !this.calls.length;
      this.thoughtMarkdown.show(this.reasoning);
    }
    this.markdown.show(this.content.trim());
    this.calls.forEach((call, index) => {
      const shown = this.callList.children[index] ?? this.callList.appendChild(callNode());
      shown.querySelector("h3").textContent = call.name;
      shown.querySelector("code").textContent = call.arguments;
    });
    this.numbers.textContent = [this.measured(), ...(this.over ? this.facts() : [])].filter(Boolean).join(" · ");
    this.root.dispatchEvent(new CustomEvent("drawn", { bubbles: true }));
  }

  /** Show the end: `reason` replaces the finish reason of the server, as after a stop. */
  end(reason = null) {
    this.finish = reason ?? this.finish ?? "";
    this.over = true;
    this.strip.describe();
    this.draw();
    for (const note of this.notes) this.below.append(make("p", { class: "note" }, `Recovery: ${note}`));
    this.root.setAttribute("aria-busy", "false");
  }

  /** Show an error below what has arrived. */
  fail(message) {
    this.end("error");
    this.below.append(make("p", { class: "error", role: "alert" }, message));
  }

  /** True if the server has sent all of it. */
  get ended() {
    return this.over && this.finish !== "error" && this.finish !== "stopped";
  }

  /** Describe tokens and speed. */
  measured() {
    const { tokens, steps, drafted, accepted, rate } = this.strip;
    if (!tokens) return "";
    const parts = [`${tokens} ${tokens === 1 ? "token" : "tokens"}`];
    if (rate !== null) parts.push(`${rate.toFixed(1)} tok/s`);
    parts.push(`${(tokens / steps).toFixed(2)} per step`);
    if (drafted) parts.push(`${Math.round((100 * accepted) / drafted)} % of ${drafted} draft tokens accepted`);
    return parts.join(" · ");
  }

  /** Describe the prompt, the cache and the end. */
  facts() {
    const prompt = this.usage?.prompt_tokens;
    const cached = this.usage?.prompt_tokens_details?.cached_tokens ?? 0;
    return [prompt && `prompt ${prompt} tokens`, prompt && `${cached} from the cache`, this.finish && `end: ${this.finish}`];
  }

  /** Return the message for the conversation; null if nothing has arrived. Calls that were cut off are left out. */
  message() {
    if (!this.content && !this.reasoning && !this.calls.length) return null;
    const message = { role: "assistant", content: this.content };
    if (this.reasoning) message.reasoning_content = this.reasoning;
    if (this.finish === "tool_calls") {
      message.tool_calls = this.calls.map(({ id, ...fields }) => ({ id, type: "function", function: fields }));
    }
    return message;
  }

  /** Return whether two completions have the same reasoning, text and calls. */
  equals(other) {
    const said = (one) => JSON.stringify([one.reasoning, one.content, one.calls.map((call) => [call.name, call.arguments])]);
    return said(this) === said(other);
  }
}

/** Return an empty box for a tool call. */
function callNode() {
  const name = make("h3");
  return make("section", { class: "call", "aria-label": "Tool call" }, name, make("pre", { tabindex: "0" }, make("code")));
}
