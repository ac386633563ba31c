// Markdown's blocks: paragraphs, headings, lists, quotes, tables, rules, code.

const FENCE = /^(\s*)(`{3,}|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(?:( +)(.*)|)$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const UNDERLINE = /^ {0,3}(=+|-+) *$/;
const DELIMITERS = /^ *(?:\| *)?:?-+:? *(?:\| *:?-+:? *)*(?:\| *)?$/;
const MAX_NESTING = 12;

const blank = (line) => line.text.trim() === "";

/** Return the match of a line that opens a code block, else null. */
function fenceOf(text) {
  const found = FENCE.exec(text);
  return found && !(found[2][0] === "`" && found[3].includes("`")) ? found : null;
}

/** True if a line begins a block that ends a paragraph. */
function interrupts({ text }) {
  const item = ITEM.exec(text);
  return Boolean(fenceOf(text)) || HEADING.test(text) || RULE.test(text) || QUOTE.test(text) || Boolean(item?.[4]);
}

/** Split lines into blocks: `{kind, at, ...}`. A block that is still open reaches to the end. */
function markdownBlocks(lines, depth = 0) {
  const blocks = [];
  for (let i = 0; i < lines.length; ) {
    if (blank(lines[i])) i += 1;
    else {
      const { block, next } = blockAt(lines, i, depth);
      blocks.push({ at: lines[i].at, ...block });
      i = next;
    }
  }
  return blocks;
}

/** Return the block that begins at line `i`, and the number of the line after it. */
function blockAt(lines, i, depth) {
  const { text } = lines[i];
  const fence = fenceOf(text);
  const heading = HEADING.exec(text);
  if (fence) return codeAt(lines, i, fence);
  if (heading) {
    const words = (heading[2] ?? "").trimEnd();
    let end = words.length;
    while (words[end - 1] === "#") end -= 1;
    const line = { text: end === 0 || words[end - 1] === " " ? words.slice(0, end).trimEnd() : words, at: lines[i].at };
    line.at += text.length - (heading[2] ?? "").length;
    return { block: { kind: "heading", level: heading[1].length, lines: [line] }, next: i + 1 };
  }
  if (RULE.test(text)) return { block: { kind: "rule" }, next: i + 1 };
  if (depth < MAX_NESTING && QUOTE.test(text)) return quoteAt(lines, i, depth);
  if (depth < MAX_NESTING && ITEM.test(text)) return listAt(lines, i, depth);
  if (text.includes("|") && lines[i + 1]?.text.includes("-") && DELIMITERS.test(lines[i + 1].text)) {
    if (cellsOf(lines[i]).length === cellsOf(lines[i + 1]).length) return tableAt(lines, i);
  }
  let next = i + 1;
  while (next < lines.length && !blank(lines[next]) && !UNDERLINE.test(lines[next].text) && !interrupts(lines[next])) next += 1;
  const under = next < lines.length && UNDERLINE.exec(lines[next].text);
  if (under) return { block: { kind: "heading", level: under[1][0] === "=" ? 1 : 2, lines: lines.slice(i, next) }, next: next + 1 };
  return { block: { kind: "paragraph", lines: lines.slice(i, next) }, next };
}

function codeAt(lines, i, [, indent, fence, about]) {
  const language = about.trim().split(/\s/)[0];
  const body = [];
  let next = i + 1;
  for (; next < lines.length; next += 1) {
    const end = lines[next].text.trim();
    if (end.length >= fence.length && end === fence[0].repeat(end.length)) break;
    body.push(lineFrom(lines[next], Math.min(indent.length, /^\s*/.exec(lines[next].text)[0].length)));
  }
  return { block: { kind: "code", language, lines: body }, next: next + 1 };
}

function quoteAt(lines, i, depth) {
  const inner = [];
  let next = i;
  for (; next < lines.length && QUOTE.test(lines[next].text); next += 1) {
    inner.push(lineFrom(lines[next], QUOTE.exec(lines[next].text)[0].length));
  }
  return { block: { kind: "quote", blocks: markdownBlocks(inner, depth + 1) }, next };
}

/** Read a list: its items are lines of their own blocks, so that lists and code may stand inside. */
function listAt(lines, i, depth) {
  const [, margin, first] = ITEM.exec(lines[i].text);
  const ordered = /\d/.test(first);
  const items = [];
  let next = i;
  let width = 0;
  for (; next < lines.length; next += 1) {
    const line = lines[next];
    const indent = /^\s*/.exec(line.text)[0].length;
    const item = ITEM.exec(line.text);
    if (blank(line)) items.at(-1).push({ text: "", at: line.at });
    else if (next > i && indent >= margin.length + 2) items.at(-1).push(lineFrom(line, Math.min(indent, width)));
    else if (item && !RULE.test(line.text) && /\d/.test(item[2]) === ordered && indent <= margin.length + 1) {
      width = line.text.length - (item[4] ?? "").length;
      items.push([lineFrom(line, width)]);
    } else if (!blank(items.at(-1).at(-1)) && !interrupts(line)) items.at(-1).push(line);
    else break;
  }
  const blocks = items.map((each) => markdownBlocks(each, depth + 1));
  const loose = items.slice(0, -1).some((each) => blank(each.at(-1)));
  return { block: { kind: "list", ordered, start: parseInt(first, 10) || 0, loose, items: blocks }, next };
}

/** Return the cells of a table's row as lines. */
function cellsOf(line) {
  const cells = [];
  let start = 0;
  let code = false;
  const { text } = line;
  const add = (end) => {
    const cell = text.slice(start, end);
    cells.push({ text: cell.trim(), at: line.at + start + cell.length - cell.trimStart().length });
    start = end + 1;
  };
  for (let i = 0; i < text.length; i += 1) {
    if (text[i] === "\\") i += 1;
    else if (text[i] === "`") code = !code;
    else if (text[i] === "|" && !code) add(i);
  }
  add(text.length);
  if (/^\s*\|/.test(text)) cells.shift();
  if (cells.length > 1 && cells.at(-1).text === "") cells.pop();
  return cells;
}

function tableAt(lines, i) {
  const align = cellsOf(lines[i + 1]).map(({ text }) => ({ "::": "center", "-:": "right" })[text[0].replace(/[^:]/, "-") + text.at(-1)] ?? "");
  const rows = [];
  let next = i + 2;
  for (; next < lines.length && !blank(lines[next]) && lines[next].text.includes("|"); next += 1) rows.push(cellsOf(lines[next]));
  return { block: { kind: "table", align, head: cellsOf(lines[i]), rows }, next };
}
