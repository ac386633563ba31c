// Conversations in the browser's IndexedDB. A save never overwrites what another tab has saved since.

const MAX_CONVERSATIONS = 200;
const MAX_SAVED_CHARS = 4_000_000;

/** Promise for the result of a request of IndexedDB. */
const resultOf = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

/** Keeps `{id, title, changed, revision, items}`. Heads, which lists need, are kept apart from the items. */
class Store {
  constructor() {
    this.channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("dflash");
    this.opened = new Promise((resolve, reject) => {
      const request = indexedDB.open("dflash", 1);
      request.onupgradeneeded = () => ["heads", "items"].forEach((name) => request.result.createObjectStore(name, { keyPath: "id" }));
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    this.opened.catch(() => {});
  }

  /** Call `act` with the id of each conversation that another tab has changed. */
  onOtherTab(act) {
    this.channel?.addEventListener("message", (event) => act(String(event.data)));
  }

  async transaction(mode) {
    const transaction = (await this.opened).transaction(["heads", "items"], mode);
    const done = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = transaction.onerror = () => reject(transaction.error);
    });
    return { heads: transaction.objectStore("heads"), items: transaction.objectStore("items"), done };
  }

  /** Return the heads of all conversations, the latest first. */
  async list() {
    const { heads } = await this.transaction("readonly");
    return (await resultOf(heads.getAll())).sort((one, other) => other.changed - one.changed);
  }

  /** Return a conversation; null if there is none. */
  async get(id) {
    const { heads, items } = await this.transaction("readonly");
    const [head, body] = await Promise.all([resultOf(heads.get(id)), resultOf(items.get(id))]);
    return head && body ? { ...head, items: body.items } : null;
  }

  /** Save a conversation. If another tab has saved it since it was read, it becomes a new one; its `id` then changes. */
  async put(conversation) {
    const { heads, items, done } = await this.transaction("readwrite");
    const head = await resultOf(heads.get(conversation.id));
    if (head && head.revision !== conversation.revision) {
      conversation.id = newId();
      conversation.title = `${conversation.title} (this tab)`;
    }
    const { id, title, changed } = conversation;
    const revision = conversation.revision + 1;
    heads.put({ id, title, changed, revision });
    items.put({ id, items: slimmed(conversation.items) });
    const all = await resultOf(heads.getAll());
    const oldest = all.sort((one, other) => other.changed - one.changed).slice(MAX_CONVERSATIONS);
    for (const each of oldest) [heads, items].forEach((part) => part.delete(each.id));
    await done;
    conversation.revision = revision;
    this.channel?.postMessage(id);
  }

  /** Change the title only. */
  async rename(id, title) {
    const { heads, done } = await this.transaction("readwrite");
    const head = await resultOf(heads.get(id));
    if (head) heads.put({ ...head, title });
    await done;
    this.channel?.postMessage(id);
  }

  async remove(id) {
    const { heads, items, done } = await this.transaction("readwrite");
    heads.delete(id);
    items.delete(id);
    await done;
    this.channel?.postMessage(id);
  }
}

/** Return an id that no other conversation has. */
const newId = () => [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** Return items without the steps of the oldest answers if all together are too large. */
function slimmed(items) {
  let left = MAX_SAVED_CHARS;
  return [...items].reverse().map((item) => {
    left -= JSON.stringify(item).length;
    if (left > 0 || item.kind !== "answer") return item;
    return { ...item, lanes: item.lanes.map((lane) => ({ ...lane, steps: [], runs: undefined })) };
  }).reverse();
}
