// Keyboard shortcuts, and the list of them.

const SHORTCUTS = [
  ["Enter", "Send the message"],
  ["Shift+Enter", "Begin a new line"],
  ["Escape", "Stop the answer; close what is open"],
  ["\u2191", "Edit the last message, from an empty field"],
  ["/", "Go to the message"],
  ["Alt+N", "New chat"],
  ["Alt+L", "Conversations"],
  ["Alt+S", "Settings"],
  ["Alt+C", "Token colours"],
  ["Alt+T", "Theme"],
  ["\u2190 \u2192", "Step by step on the slider of an answer, token by token in its text"],
  ["?", "This list"],
];

function showShortcuts() {
  byId("keys").replaceChildren(...SHORTCUTS.flatMap(([key, act]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, act)]));
  byId("shortcuts").showModal();
}

/** Run `acts[name]` for its key: "Alt+N" by letter, "/" and "?" outside of fields. */
function listenForKeys(acts) {
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    const inField = /^(?:INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "range" && event.target.type !== "checkbox";
    const letter = /^Key([A-Z])$/.exec(event.code)?.[1];
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !inField;
    const name = event.altKey && !event.ctrlKey && !event.metaKey && letter ? `Alt+${letter}` : event.key === "Escape" || plain ? event.key : "";
    if (!Object.hasOwn(acts, name)) return;
    if (acts[name]() !== false && name !== "Escape") event.preventDefault();
  });
}
