// The note beside a token: where it came from, and which draft tokens were rejected there.

const MAX_TIP_PATHS = 6;

class Tip {
  constructor() {
    this.root = make("div", { id: "tip", role: "tooltip", hidden: "" });
    document.body.append(this.root);
    this.element = null;
    document.addEventListener("scroll", () => (this.element === document.activeElement ? this.place() : this.hide()), true);
  }

  /** Show the note of a token of a step beside its element. */
  show(element, number, step, piece) {
    const [origin] = step.pieces[piece];
    const rejected = rejectedAt(step, piece);
    const texts = rejected.slice(0, MAX_TIP_PATHS).map((text) => make("li", {}, make("s", {}, visible(text))));
    if (rejected.length > MAX_TIP_PATHS) texts.push(make("li", {}, `and ${rejected.length - MAX_TIP_PATHS} more`));
    const title = make("p", {}, make("i", { class: origin }), `${ORIGINS[origin]}, step ${number + 1}`);
    this.root.replaceChildren(title, ...(texts.length ? [make("p", { class: "muted" }, "rejected here:"), make("ul", {}, ...texts)] : []));
    this.root.hidden = false;
    this.element?.removeAttribute("aria-describedby");
    this.element = element;
    element.setAttribute("aria-describedby", "tip");
    this.place();
  }

  place() {
    const { element } = this;
    const box = element.getClientRects()[0] ?? element.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.root;
    const left = Math.max(8, Math.min(box.left, innerWidth - width - 8));
    const above = box.bottom + height + 12 > innerHeight;
    this.root.style.setProperty("left", `${left}px`);
    this.root.style.setProperty("top", `${above ? box.top - height - 6 : box.bottom + 6}px`);
  }

  hide() {
    this.root.hidden = true;
  }
}
