// Growing Markdown in an element. Blocks that have ended are never built again, so a long answer costs time in its length.

/** Length up to which an open block is built at every drawing; a longer one only after it has grown by an eighth. */
const SMALL_BLOCK = 4096;

/** Appends characters of a source; the default knows nothing of tokens. */
function paintText(element, source, from, to, kind = "") {
  if (from >= to) return;
  const text = source.text.slice(from, to);
  element.append(kind ? make("span", { class: kind }, text) : text);
}

/** Return the node of a block. */
function blockNode(block, paint) {
  const inline = (tag, lines) => {
    const element = make(tag);
    appendInline(element, new Source(lines), paint);
    return element;
  };
  if (block.kind === "heading") return inline(`h${Math.min(6, block.level + 2)}`, block.lines);
  if (block.kind === "rule") return make("hr");
  if (block.kind === "quote") return make("blockquote", {}, ...block.blocks.map((each) => blockNode(each, paint)));
  if (block.kind === "code") return codeNode(block, paint);
  if (block.kind === "list") return listNode(block, paint);
  if (block.kind === "table") return tableNode(block, inline);
  return inline("p", block.lines);
}

function codeNode({ language, lines }, paint) {
  const source = new Source(lines);
  const code = make("code");
  let end = 0;
  for (const { from, to, kind } of highlighted(source.text, language)) {
    paint(code, source, end, from);
    paint(code, source, from, to, `code-${kind}`);
    end = to;
  }
  paint(code, source, end, source.text.length);
  const pre = make("pre", { ...(language && { "data-language": language }), tabindex: "0" }, code);
  return make("div", { class: "code" }, make("div", { class: "code-head" }, make("span", {}, language || "text"), copyButton("Copy code", () => source.text)), pre);
}

function listNode({ ordered, start, loose, items }, paint) {
  const list = make(ordered ? "ol" : "ul", ordered ? { start } : {});
  for (const blocks of items) {
    const item = make("li");
    blocks.forEach((block, index) => {
      const tight = !loose && block.kind === "paragraph" && index === 0;
      if (tight) taskText(item, new Source(block.lines), paint);
      else item.append(blockNode(block, paint));
    });
    list.append(item);
  }
  return list;
}

/** Append an item's text; "[ ]" and "[x]" at its start are a box. */
function taskText(item, source, paint) {
  const task = /^\[([ xX])\] /.exec(source.text);
  if (task) item.append(task[1] === " " ? "\u2610 " : "\u2611 ");
  if (task) item.className = "task";
  appendInline(item, source, paint, task ? 4 : 0);
}

function tableNode({ align, head, rows }, inline) {
  const row = (tag, cells) =>
    make("tr", {}, ...align.map((side, index) => {
      const cell = inline(tag, cells[index] ? [cells[index]] : []);
      if (side) cell.className = side;
      return cell;
    }));
  const table = make("table", {}, make("thead", {}, row("th", head)), make("tbody", {}, ...rows.map((cells) => row("td", cells))));
  return make("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, table);
}

/** Shows Markdown that grows at its end. */
class MarkdownView {
  constructor(element, paint = paintText) {
    Object.assign(this, { element, paint });
    this.clear();
  }

  /** Forget the text. */
  clear() {
    Object.assign(this, { text: "", at: 0, nodes: 0, built: -1, shown: 0 });
    this.element.replaceChildren();
  }

  append(text) {
    this.text += text;
  }

  /** Show what was appended; `whole` builds the last block even if it is long and has hardly grown. */
  draw(whole = false) {
    const { length } = this.text;
    if (length === this.shown && !(whole && this.built !== length)) return;
    if (!whole && this.built > SMALL_BLOCK && length < this.built * 1.125) this.appendRaw();
    else this.build();
    this.shown = this.text.length;
  }

  /** Show new characters as they are at the end of the open block. */
  appendRaw() {
    let inner = this.element.lastElementChild;
    if (inner?.className === "code") inner = inner.querySelector("code");
    while (inner?.lastElementChild && !/^(?:CODE|SPAN|A|BUTTON)$/.test(inner.lastElementChild.tagName)) inner = inner.lastElementChild;
    inner?.append(this.text.slice(this.shown));
  }

  /** Build the open block again, and those that follow it. */
  build() {
    const blocks = markdownBlocks(linesOf(this.text, this.at));
    while (this.element.childNodes.length > this.nodes) this.element.lastChild.remove();
    this.element.append(...blocks.map((block) => blockNode(block, this.paint)));
    if (!blocks.length) return;
    // the first line of a block decides that the block before it has ended: not before that line is whole
    const begun = !this.text.includes("\n", blocks.at(-1).at - this.at);
    const n = begun && blocks.length > 1 ? 2 : 1;
    const open = blocks.at(-n);
    this.nodes = this.element.childNodes.length - n;
    this.text = this.text.slice(open.at - this.at);
    this.at = open.at;
    this.built = this.text.length;
  }
}
