// Scrubs through the steps of an answer: what each step drafted, accepted, rejected and wrote.

const PLAY_MS = 350;
const MAX_ROWS = 8;

/** A chart, a slider and the tokens of the chosen step. `onChoose(number)` follows the choice; null is the whole answer. */
class StepPlayer {
  constructor(steps, onChoose) {
    Object.assign(this, { steps, onChoose, chosen: null, timer: null });
    this.strip = new StepStrip(steps);
    this.strip.root.addEventListener("click", (event) => {
      const column = event.target.closest("[data-step]");
      if (column) this.choose(Number(column.dataset.step));
    });
    this.slider = make("input", { type: "range", min: "1", max: "1", value: "1", "aria-label": "Step of the answer" });
    this.slider.addEventListener("input", () => this.choose(Number(this.slider.value) - 1));
    this.play = iconButton("play", "Play the steps", () => this.toggle());
    this.all = makeButton("Whole answer", () => this.choose(null), { class: "quiet", hidden: "" });
    this.words = make("p", { class: "step-words muted" });
    this.tokens = make("div", { class: "step-tokens" });
    this.controls = make("div", { class: "scrub", hidden: "" }, this.play, this.slider, this.all);
    this.legend = make("div", { class: "legend muted", "aria-hidden": "true", hidden: "" });
    this.panel = make("div", { class: "step-panel", hidden: "" }, this.words, this.tokens);
    this.root = make("section", { class: "steps", "aria-label": "Steps" }, this.strip.root, this.controls, this.panel, this.legend);
  }

  /** Show the next step. */
  add(number) {
    this.strip.add(number);
  }

  /** Show the controls after the last step. */
  end() {
    const { length } = this.steps;
    const drafted = this.steps.some((step) => step.drafted);
    const injected = this.steps.some((step) => step.injected);
    this.slider.max = String(Math.max(1, length));
    this.slider.value = this.slider.max;
    this.slider.setAttribute("aria-valuetext", "the whole answer");
    this.controls.hidden = length < 2 || !this.steps[0].pieces;
    this.legend.hidden = !drafted && !injected;
    const kinds = { ...ORIGINS };
    if (!injected) delete kinds.injected;
    this.legend.replaceChildren(...Object.entries(kinds).map(swatch));
    const tokens = this.steps.reduce((sum, step) => sum + step.tokens, 0);
    this.strip.root.setAttribute("aria-label", `${counted(length, "step")}, ${counted(tokens, "token")}`);
  }

  /** Choose a step; null shows the whole answer. */
  choose(number) {
    if (number === null) this.stop();
    this.chosen = number;
    this.strip.mark(number);
    this.all.hidden = this.panel.hidden = number === null;
    this.slider.value = String(number === null ? this.steps.length : number + 1);
    if (number !== null) {
      const words = stepWords(this.steps[number], number).replace(":", ` of ${this.steps.length}:`);
      this.words.textContent = words[0].toUpperCase() + words.slice(1);
      this.tokens.replaceChildren(...stepRows(this.steps[number]));
    }
    this.slider.setAttribute("aria-valuetext", number === null ? "the whole answer" : this.words.textContent);
    this.onChoose(number);
  }

  /** Play from the chosen step to the end, or pause. */
  toggle() {
    if (this.timer !== null) return this.stop();
    const begin = this.chosen === null || this.chosen === this.steps.length - 1;
    this.choose(begin ? 0 : this.chosen);
    relabel(this.play, "pause", "Pause");
    this.timer = setInterval(() => {
      if (!this.root.isConnected || this.chosen === null || this.chosen + 1 >= this.steps.length) this.choose(null);
      else this.choose(this.chosen + 1);
    }, PLAY_MS);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    relabel(this.play, "play", "Play the steps");
  }
}

/** Return rows with the tokens of a step: the draft, one row for each path of a tree, and what was written. */
function stepRows(step) {
  const { pieces = [], draft = [], path = [] } = step;
  const accepted = new Set(path);
  const row = (label, tokens) => make("div", { class: "token-row" }, make("span", { class: "muted" }, label), ...tokens);
  const seen = new Set();
  const paths = pathsOf(draft).sort((one, other) => other.filter((node) => accepted.has(node)).length - one.filter((node) => accepted.has(node)).length);
  const rows = paths.slice(0, MAX_ROWS).map((nodes, index) =>
    row(index ? "or" : "drafted", nodes.map((node) => {
      const kind = seen.has(node) ? "again" : accepted.has(node) ? "accepted" : "rejected";
      seen.add(node);
      return make(kind === "rejected" ? "s" : "span", { class: `chip ${kind}`, title: ORIGINS[kind] ?? "" }, visible(draft[node][0]));
    })),
  );
  if (paths.length > MAX_ROWS) rows.push(row("", [`and ${paths.length - MAX_ROWS} more branches`]));
  if (!paths.length) rows.push(row("drafted", [make("span", { class: "muted" }, "nothing")]));
  rows.push(row("written", pieces.map(([origin, text]) => make("span", { class: `chip ${origin}`, title: ORIGINS[origin] }, visible(text)))));
  return rows;
}
