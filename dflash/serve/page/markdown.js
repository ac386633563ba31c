// A small part of Markdown as DOM nodes: paragraphs, headings, lists, code blocks, inline code, bold, emphasis.

const FENCE = /^\s*(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6}) +(.*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)]) +(.*)$/;
const INLINE = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*/g;

/** Split text into blocks: `{kind, lines, ...}`. A code block that is still open reaches to the end. */
function markdownBlocks(text) {
  const blocks = [];
  let open = null;
  let fence = null;
  for (const line of text.split("\n")) {
    if (fence !== null) {
      const end = line.trim();
      if (end.startsWith(fence) && end === fence[0].repeat(end.length)) fence = open = null;
      else open.lines.push(line);
      continue;
    }
    const fenced = FENCE.exec(line);
    const heading = HEADING.exec(line);
    const item = ITEM.exec(line);
    if (fenced) {
      fence = fenced[1];
      blocks.push((open = { kind: "code", language: fenced[2], lines: [] }));
    } else if (heading) {
      blocks.push({ kind: "heading", lines: [heading[2]] });
      open = null;
    } else if (item) {
      if (open?.kind !== "list") blocks.push((open = { kind: "list", lines: [] }));
      open.lines.push(line);
    } else if (line.trim() === "") {
      if (open?.kind !== "list") open = null;
      else open.lines.push("");
    } else if (open?.kind === "list" && (/^\s/.test(line) || open.lines.at(-1) !== "")) {
      open.lines.push(line);
    } else if (open?.kind === "paragraph") {
      open.lines.push(line);
    } else blocks.push((open = { kind: "paragraph", lines: [line] }));
  }
  return blocks;
}

/** Append text with inline code, bold and emphasis to an element. */
function appendInline(element, text) {
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    element.append(text.slice(end, found.index));
    if (found[1] !== undefined) element.append(make("code", {}, found[1]));
    else {
      const strong = make(found[2] !== undefined ? "strong" : "em");
      appendInline(strong, found[2] ?? found[3]);
      element.append(strong);
    }
    end = found.index + found[0].length;
  }
  element.append(text.slice(end));
}

/** Return the list, or the lists, that lines with markers stand for; deeper indentation is a list inside an item. */
function listNode(lines) {
  const root = make("div");
  const open = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (!item) {
      if (line !== "") appendInline(open.at(-1).item, "\n" + line.trim());
      continue;
    }
    const indent = item[1].length;
    const tag = /\d/.test(item[2]) ? "ol" : "ul";
    while (open.length && (open.at(-1).indent > indent || (open.at(-1).indent === indent && open.at(-1).tag !== tag))) open.pop();
    if (!open.length || open.at(-1).indent < indent) {
      const list = make(tag, tag === "ol" ? { start: parseInt(item[2], 10) } : {});
      (open.at(-1)?.item ?? root).append(list);
      open.push({ indent, tag, list, item: null });
    }
    open.at(-1).item = make("li");
    open.at(-1).list.append(open.at(-1).item);
    appendInline(open.at(-1).item, item[3]);
  }
  return root;
}

/** Return the node of a block. */
function blockNode(block) {
  if (block.kind === "list") return listNode(block.lines);
  if (block.kind === "code") {
    const about = block.language ? { "data-language": block.language } : {};
    return make("pre", { ...about, tabindex: "0" }, make("code", {}, block.lines.join("\n")));
  }
  const element = make(block.kind === "heading" ? "h3" : "p");
  appendInline(element, block.lines.join("\n"));
  return element;
}

/** Shows growing Markdown text in an element; only blocks that have changed are built again. */
class MarkdownView {
  constructor(element) {
    this.element = element;
    this.shown = [];
  }

  show(text) {
    const blocks = markdownBlocks(text);
    const keys = blocks.map((block) => JSON.stringify(block));
    let same = 0;
    while (same < keys.length && keys[same] === this.shown[same]) same += 1;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    this.element.append(...blocks.slice(same).map(blockNode));
    this.shown = keys;
  }
}
