// The strip of steps: a column for each step with its bonus token, accepted and rejected draft tokens.

const MAX_COLUMNS = 160;

const KINDS = { accepted: "accepted draft token", rejected: "rejected draft token", bonus: "bonus token" };

/** Return an entry of the legend. */
const swatch = ([kind, meaning]) => make("span", {}, make("i", { class: kind }), meaning);

/** Draws the steps of one completion and counts them. */
class StepStrip {
  constructor() {
    this.root = make("div", { class: "strip", role: "img", hidden: "" });
    this.legend = make("div", { class: "legend muted", "aria-hidden": "true", hidden: "" }, ...Object.entries(KINDS).map(swatch));
    this.tokens = 0;
    this.drafted = 0;
    this.accepted = 0;
    this.steps = 0;
    this.most = 2;
    this.firstTokens = 0;
    this.firstAt = null;
    this.lastAt = null;
  }

  /** Add a step: `{tokens, drafted, accepted, seconds}`. */
  add(step) {
    if (!step.tokens && !step.drafted) return;
    this.lastAt = performance.now();
    if (this.firstAt === null) {
      this.firstAt = this.lastAt;
      this.firstTokens = step.tokens;
    }
    this.steps += 1;
    this.tokens += step.tokens;
    this.drafted += step.drafted;
    this.accepted += step.accepted;
    this.draw(step);
  }

  draw(step) {
    const rejected = step.drafted - step.accepted;
    const column = make("span");
    column.title =
      `step ${this.steps}: ${step.tokens} tokens, ${(step.seconds * 1e3).toFixed(1)} ms` +
      (step.drafted ? `, ${step.accepted} of ${step.drafted} draft tokens accepted` : "");
    const counts = { rejected, bonus: Math.max(0, step.tokens - step.accepted), accepted: step.accepted };
    for (const [kind, count] of Object.entries(counts)) {
      if (!count) continue;
      const bar = make("i", { class: kind });
      bar.style.setProperty("--n", count);
      column.append(bar);
    }
    this.most = Math.max(this.most, rejected + step.tokens);
    this.root.style.setProperty("--most", this.most);
    this.root.append(column);
    if (this.root.childNodes.length > MAX_COLUMNS) this.root.firstChild.remove();
    this.root.hidden = false;
    this.legend.hidden = !this.drafted;
    this.root.scrollLeft = this.root.scrollWidth;
  }

  /** Describe the strip for those who do not see it; called at the end. */
  describe() {
    this.root.setAttribute("aria-label", `${this.steps} steps, ${this.tokens} tokens${this.drafts()}`);
  }

  drafts() {
    return this.drafted ? `, ${this.accepted} of ${this.drafted} draft tokens accepted` : "";
  }

  /** Tokens per second after the first step, as they arrived here; null for a single step. */
  get rate() {
    return this.lastAt > this.firstAt ? ((this.tokens - this.firstTokens) * 1e3) / (this.lastAt - this.firstAt) : null;
  }
}
