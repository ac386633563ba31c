// Text files that are sent as part of a message.

const MAX_FILE_BYTES = 256 * 1024;
const MAX_FILES = 8;

/** Files of the next message, shown as chips. */
class Attachments {
  constructor(root, onProblem) {
    Object.assign(this, { root, onProblem, files: [] });
  }

  /** Add files that are text and small enough; others are named. */
  async add(list) {
    for (const file of list) {
      const problem = this.files.length >= MAX_FILES ? `At most ${MAX_FILES} files fit one message.` : await this.read(file);
      this.onProblem(problem);
      if (problem) break;
    }
    this.draw();
  }

  /** Read a file; return what is wrong with it, or "". */
  async read(file) {
    if (file.size > MAX_FILE_BYTES) return `${file.name} has ${sizeWords(file.size)}; files of at most ${sizeWords(MAX_FILE_BYTES)} can be attached.`;
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0")) throw new TypeError("binary");
      this.files.push({ name: file.name, size: file.size, text });
      return "";
    } catch {
      return `${file.name} is no text in UTF-8; only text files can be attached.`;
    }
  }

  /** Return the files and forget them. */
  take() {
    const { files } = this;
    this.set([]);
    return files;
  }

  set(files) {
    this.files = files;
    this.draw();
  }

  draw() {
    this.root.hidden = !this.files.length;
    this.root.replaceChildren(...this.files.map((file, index) => {
      const remove = iconButton("close", `Remove ${file.name}`, () => this.set(this.files.filter((_, other) => other !== index)));
      return make("span", { class: "chip file" }, `${file.name} · ${sizeWords(file.size)}`, remove);
    }));
  }
}

const sizeWords = (bytes) => (bytes < 1024 ? counted(bytes, "byte") : `${Math.round(bytes / 1024)} KiB`);

/** Return a message's text with its files in front, each in a fence that its own text can't close. */
function withFiles(text, files = []) {
  const parts = files.map(({ name, text: content }) => {
    const longest = Math.max(2, ...[...content.matchAll(/`+/g)].map(([run]) => run.length));
    const fence = "`".repeat(longest + 1);
    return `File ${name}:\n${fence}\n${content.replace(/\n$/, "")}\n${fence}`;
  });
  return [...parts, text].filter(Boolean).join("\n\n");
}
