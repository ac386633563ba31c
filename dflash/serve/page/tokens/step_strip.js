// The chart of steps: a column for each step with its bonus token, accepted and rejected draft tokens.

const MAX_COLUMNS = 120;

/** Return an entry of the legend. */
const swatch = ([kind, meaning]) => make("span", {}, make("i", { class: kind }), meaning);

/** Draws the steps of one completion, at most `MAX_COLUMNS` of them: those around the chosen one. */
class StepStrip {
  constructor(steps) {
    this.steps = steps;
    this.first = 0;
    this.most = 2;
    this.root = make("div", { class: "strip", role: "img", hidden: "" });
  }

  /** Draw the next step. */
  add(number) {
    const { tokens, drafted, accepted } = this.steps[number];
    this.most = Math.max(this.most, drafted - accepted + tokens);
    this.root.style.setProperty("--most", this.most);
    this.root.append(this.column(number));
    if (this.root.childNodes.length > MAX_COLUMNS) {
      this.root.firstChild.remove();
      this.first += 1;
    }
    this.root.hidden = false;
  }

  column(number) {
    const { tokens, drafted, accepted, injected = 0 } = this.steps[number];
    const column = make("span", { "data-step": number, title: stepWords(this.steps[number], number) });
    const counts = { rejected: drafted - accepted, bonus: Math.max(0, tokens - accepted - injected), accepted, injected };
    for (const [kind, count] of Object.entries(counts)) {
      if (!count) continue;
      const bar = make("i", { class: kind });
      bar.style.setProperty("--n", count);
      column.append(bar);
    }
    return column;
  }

  /** Mark a step; null marks none. */
  mark(number) {
    this.root.querySelector(".chosen")?.classList.remove("chosen");
    if (number === null) return;
    const last = Math.min(this.steps.length, this.first + MAX_COLUMNS);
    if (number < this.first || number >= last) {
      this.first = Math.max(0, Math.min(number - MAX_COLUMNS / 2, this.steps.length - MAX_COLUMNS));
      const shown = this.steps.slice(this.first, this.first + MAX_COLUMNS);
      this.root.replaceChildren(...shown.map((_, index) => this.column(this.first + index)));
    }
    this.root.children[number - this.first]?.classList.add("chosen");
  }
}

/** Describe a step in words. */
function stepWords({ tokens, drafted, accepted, seconds }, number) {
  const drafts = drafted ? `${drafted} drafted, ${accepted} accepted, ${drafted - accepted} rejected` : "nothing drafted";
  return `step ${number + 1}: ${drafts}, ${counted(tokens, "token")} written, ${(seconds * 1e3).toFixed(1)} ms`;
}
