// Lines of Markdown that know their place in the text of the model, so that each character shown can be traced to its token.

/** Several lines as one text; a character's place in the whole source survives the removal of markers and indents. */
class Source {
  /** `lines` are `{text, at}`: a line and the place of its first character. */
  constructor(lines) {
    this.text = lines.map((line) => line.text).join("\n");
    this.runs = [];
    let start = 0;
    let next = null;
    for (const { text, at } of lines) {
      if (at !== next) this.runs.push({ start, at });
      start += text.length + 1;
      next = at + text.length + 1;
    }
  }

  /** Yield `{text, at}` for the characters from `from` to `to`, split where they do not follow each other in the source. */
  *parts(from, to) {
    for (let i = this.runs.length - 1, low = 0; low <= i; ) {
      const middle = (low + i) >> 1;
      if (middle + 1 < this.runs.length && this.runs[middle + 1].start <= from) low = middle + 1;
      else if (this.runs[middle].start > from) i = middle - 1;
      else {
        for (let run = middle; from < to; run += 1) {
          const end = Math.min(to, this.runs[run + 1]?.start ?? to);
          yield { text: this.text.slice(from, end), at: this.runs[run].at + from - this.runs[run].start };
          from = end;
        }
        return;
      }
    }
  }
}

/** Return the lines of a text that begins at `at`. */
function linesOf(text, at = 0) {
  return text.split("\n").map((line) => {
    const found = { text: line.replace(/\r$/, ""), at };
    at += line.length + 1;
    return found;
  });
}

/** Return a line without its first `n` characters. */
const lineFrom = (line, n) => ({ text: line.text.slice(n), at: line.at + Math.min(n, line.text.length) });
