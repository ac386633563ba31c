// A message of the user: its text, its files, and the field in which it is edited.

class UserView {
  /** `onEdit(text)` runs with the new text of the message. */
  constructor(item, onEdit) {
    Object.assign(this, { item, onEdit });
    this.root = make("section", { class: "user", "aria-label": "You" });
    this.draw();
  }

  draw() {
    const { text, files = [] } = this.item;
    const shown = files.map((file) =>
      make("details", { class: "file" }, make("summary", {}, `${file.name} · ${sizeWords(file.size)}`), make("pre", { tabindex: "0" }, file.text)),
    );
    const actions = make("div", { class: "actions" }, copyButton("Copy message", () => text), iconButton("edit", "Edit message", () => this.edit()));
    this.root.replaceChildren(...shown, ...(text ? [make("div", { class: "bubble" }, text)] : []), actions);
  }

  /** Let the user change the text; sending it runs the conversation again from here. */
  edit() {
    const field = make("textarea", { rows: String(Math.min(12, this.item.text.split("\n").length + 1)), "aria-label": "Message" });
    field.value = this.item.text;
    const send = () => this.onEdit(field.value.trim());
    const cancel = () => {
      this.draw();
      this.root.querySelector("[aria-label='Edit message']").focus();
    };
    onEnter(field, send);
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      cancel();
    });
    const row = make("div", { class: "row" }, makeButton("Send again", send, { class: "primary" }), makeButton("Cancel", cancel));
    this.root.replaceChildren(make("div", { class: "editing" }, field, row));
    field.focus();
  }
}
