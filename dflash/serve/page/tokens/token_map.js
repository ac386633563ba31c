// Which token each character of an answer came from. The server sends text, and with each step the texts of its tokens.

const PARTS = ["reasoning", "content"];

/** Maps characters of reasoning and content to tokens: `runs[part]` are `{at, length, step, piece}` in order. */
class TokenMap {
  constructor(runs = { reasoning: [], content: [] }) {
    this.runs = runs;
    this.lengths = { reasoning: 0, content: 0 };
    this.waiting = [];
    this.pieces = [];
  }

  /** Note text that has arrived; its tokens arrive with the record of the step. */
  text(part, text) {
    const at = this.lengths[part];
    this.lengths[part] += text.length;
    this.waiting.push({ part, text, at });
  }

  /** Note the tokens of a step, and find them in the text that has arrived. */
  step(number, pieces = []) {
    pieces.forEach(([, text, kind], piece) => {
      if (kind !== "control" && text) this.pieces.push({ text, step: number, piece, added: kind === "added", used: 0 });
    });
    for (const each of this.waiting) this.align(each);
    this.waiting = [];
  }

  /** Give characters to the next tokens that spell them. Tags between reasoning, text and calls are no part of either. */
  align({ part, text, at }) {
    const raw = this.pieces.map((piece) => piece.text.slice(piece.used)).join("");
    let skip = this.skipTags(raw, text);
    if (!raw.startsWith(text, skip)) skip = raw.indexOf(text);
    if (skip < 0) return;
    this.consume(skip);
    while (text) {
      const [piece] = this.pieces;
      const length = Math.min(text.length, piece.text.length - piece.used);
      this.runs[part].push({ at, length, step: piece.step, piece: piece.piece });
      at += length;
      text = text.slice(length);
      this.consume(length);
    }
  }

  /** Return the place of `text` after tags and the space around them. */
  skipTags(raw, text) {
    let place = 0;
    let next = 0;
    for (const { text: whole, used, added } of this.pieces) {
      const end = next + whole.length - used;
      while (place < end) {
        if (raw.startsWith(text, place)) return place;
        if (added && place === next) place = end;
        else if (/\s/.test(raw[place])) place += 1;
        else return place;
      }
      next = end;
    }
    return place;
  }

  /** Drop characters from the front of the tokens that wait for text. */
  consume(n) {
    let used = 0;
    while (n > 0) {
      const piece = this.pieces[used];
      const taken = Math.min(n, piece.text.length - piece.used);
      piece.used += taken;
      n -= taken;
      if (piece.used === piece.text.length) used += 1;
    }
    this.pieces.splice(0, used);
  }

  /** Yield `{from, to, step, piece}` of the tokens between two places of a part, without those that are not known. */
  *between(part, from, to) {
    const runs = this.runs[part];
    let low = 0;
    for (let high = runs.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (runs[middle].at + runs[middle].length <= from) low = middle + 1;
      else high = middle;
    }
    for (; low < runs.length && runs[low].at < to; low += 1) {
      const { at, length, step, piece } = runs[low];
      yield { from: Math.max(from, at), to: Math.min(to, at + length), step, piece };
    }
  }
}

/** Return a painter for `MarkdownView` that puts each token into an element of its own; `origin(step, piece)` names its kind. */
function tokenPainter(map, part, origin) {
  return (element, source, from, to, kind = "") => {
    if (from >= to) return;
    const parent = kind ? make("span", { class: kind }) : element;
    for (const { text, at } of source.parts(from, to)) {
      let end = at;
      for (const token of map.between(part, at, at + text.length)) {
        if (token.from > end) parent.append(text.slice(end - at, token.from - at));
        const shown = text.slice(token.from - at, token.to - at);
        parent.append(make("span", { class: `t ${origin(token.step, token.piece)}`, "data-s": token.step, "data-p": token.piece }, shown));
        end = token.to;
      }
      if (end < at + text.length) parent.append(text.slice(end - at));
    }
    if (parent !== element) element.append(parent);
  };
}
