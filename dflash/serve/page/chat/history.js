// The list of conversations: open, rename, delete, export, import.

class ConversationList {
  /** `onOpen(conversation)` shows one; null a new one. */
  constructor(store, thread, onOpen) {
    Object.assign(this, { store, thread, onOpen, heads: [] });
    this.root = byId("conversations");
    store.onOtherTab((id) => this.changedElsewhere(id));
    addEventListener("hashchange", () => this.openHash());
  }

  /** Ask the store for the list and show it. */
  async refresh() {
    try {
      this.heads = await this.store.list();
    } catch {
      this.heads = [];
    }
    this.draw();
  }

  draw() {
    const current = this.thread.conversation.id;
    if (this.heads.some((head) => head.id === current)) history.replaceState(null, "", `#${current}`);
    byId("no-conversations").hidden = this.heads.length > 0;
    if (this.root.contains(document.activeElement) && document.activeElement.tagName === "INPUT") return;
    this.root.replaceChildren(...this.heads.map((head) => this.row(head, head.id === current)));
  }

  row(head, current) {
    const open = makeButton(head.title, () => this.open(head.id), { class: "open", title: head.title, ...(current && { "aria-current": "page" }) });
    const row = make("li", {}, open);
    const rename = iconButton("edit", `Rename ${head.title}`, () => this.rename(head, row));
    row.append(rename, iconButton("remove", `Delete ${head.title}`, () => this.remove(head)));
    return row;
  }

  async open(id) {
    const conversation = await this.store.get(id).catch(() => null);
    if (conversation) this.onOpen(conversation);
    this.draw();
  }

  /** Open the conversation that the address names. */
  async openHash() {
    const id = location.hash.slice(1);
    if (id && id !== this.thread.conversation.id) await this.open(id);
  }

  rename(head, row) {
    const field = make("input", { value: head.title, "aria-label": "Title", maxlength: "100" });
    let ended = false;
    const end = async (saved) => {
      if (ended) return;
      ended = true;
      const title = field.value.trim();
      if (saved && title && title !== head.title) {
        await this.store.rename(head.id, title);
        if (this.thread.conversation.id === head.id) this.thread.conversation.title = title;
      }
      field.remove();
      await this.refresh();
    };
    onEnter(field, () => end(true));
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      end(false);
    });
    field.addEventListener("blur", () => end(true));
    row.replaceChildren(field);
    field.select();
  }

  /** Delete a conversation, with the chance to undo. */
  async remove({ id, title }) {
    const conversation = await this.store.get(id);
    if (this.thread.conversation.id === id) this.onOpen(null);
    await this.store.remove(id);
    await this.refresh();
    toast(`Deleted \u201c${title}\u201d.`, async () => {
      if (conversation) await this.store.put({ ...conversation, revision: 0 });
      await this.refresh();
    });
  }

  /** Follow what another tab has saved or deleted, unless an answer is being written here. */
  async changedElsewhere(id) {
    const { thread } = this;
    const editing = thread.log.contains(document.activeElement) && document.activeElement.tagName === "TEXTAREA";
    if (thread.conversation.id === id && !thread.running && !editing) {
      const stored = await this.store.get(id).catch(() => null);
      const written = stored?.items.at(-1)?.lanes?.some((lane) => lane.finish === null);  // the other tab is not done
      if (stored && !written && thread.conversation.id === id && !thread.running && stored.revision !== thread.conversation.revision) thread.show(stored);
    }
    await this.refresh();
  }

  /** Save all conversations as a file. */
  async export() {
    const all = await Promise.all(this.heads.map((head) => this.store.get(head.id)));
    const data = { format: "dflash conversations", version: 1, conversations: all.filter(Boolean) };
    const url = URL.createObjectURL(new Blob([JSON.stringify(data)], { type: "application/json" }));
    const link = make("a", { href: url, download: `dflash-conversations-${new Date().toISOString().slice(0, 10)}.json` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  /** Add the conversations of such a file. */
  async import(file) {
    try {
      const data = JSON.parse(await file.text());
      const found = (Array.isArray(data.conversations) ? data.conversations : []).map(conversationFrom).filter(Boolean);
      if (!found.length) throw new Error("no conversations");
      for (const each of found) await this.store.put(each);
      toast(`Added ${counted(found.length, "conversation")}.`);
    } catch {
      toast(`${file.name} holds no conversations of this page.`);
    }
    await this.refresh();
  }
}
