"use strict";
// DOM nodes without HTML: text of a model reaches the document as text nodes only.

/** Return the element with an id. */
const byId = (id) => document.getElementById(id);

/** Return a new element with attributes and children; strings become text, null is left out. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Return a new button with a label and a click handler. */
function makeButton(label, act, attributes = {}) {
  const button = make("button", { type: "button", ...attributes }, label);
  button.addEventListener("click", act);
  return button;
}

const ICONS = {
  attach: "M8 12.5 14.5 6a3 3 0 0 1 4.3 4.3l-8.6 8.6a5 5 0 0 1-7.1-7.1L11 4",
  close: "M6 6l12 12M18 6 6 18",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  done: "M5 12.5l4.5 4.5L19 7.5",
  edit: "M4 20h4L19.5 8.5a2.8 2.8 0 0 0-4-4L4 16zM14 6l4 4",
  keys: "M3 6h18v12H3zM7 10h.01M12 10h.01M17 10h.01M8 14h8",
  list: "M3 5h18v14H3zM9 5v14",
  more: "M12 5v14M5 12h14",
  pause: "M8 5v14M16 5v14",
  play: "M7 4.5v15l12-7.5z",
  remove: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v5M14 11v5",
  again: "M4 12a8 8 0 0 1 14-5.3L20 9M20 4v5h-5M20 12a8 8 0 0 1-14 5.3L4 15M4 20v-5h5",
  send: "M12 19V5M5.5 11.5 12 5l6.5 6.5",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5",
  stop: "M7 7h10v10H7z",
  theme: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
  upload: "M12 16V4M7 9l5-5 5 5M4 16v4h16v-4",
  download: "M12 4v12M7 11l5 5 5-5M4 16v4h16v-4",
};

/** Return a drawing of an icon; it says nothing to screen readers. */
function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const path = document.createElementNS(space, "path");
  for (const [key, value] of [["viewBox", "0 0 24 24"], ["class", "icon"], ["aria-hidden", "true"]]) svg.setAttribute(key, value);
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** Return a button that shows an icon only; its label is for screen readers and for the pointer. */
function iconButton(name, label, act) {
  const button = makeButton(icon(name), act, { class: "plain", "aria-label": label, title: label });
  return button;
}

/** Change the icon and the label of such a button. */
function relabel(button, name, label) {
  button.replaceChildren(icon(name));
  button.setAttribute("aria-label", label);
  button.title = label;
}

/** Return a button that copies the text of `textOf()` and says so for a moment. */
function copyButton(label, textOf) {
  const button = iconButton("copy", label, async () => {
    const copied = await copyText(textOf());
    relabel(button, copied ? "done" : "close", copied ? "Copied" : "This browser does not allow copying here");
    setTimeout(() => relabel(button, "copy", label), 1500);
  });
  return button;
}

/** Copy text; pages without TLS may have no clipboard, so an unseen field helps. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = make("textarea", { class: "unseen", "aria-hidden": "true" });
    const before = document.activeElement;
    field.value = text;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    before?.focus();
    return copied;
  }
}

/** Call `act` for Enter without Shift, which is the key that sends; not while an input method composes a word. */
function onEnter(field, act) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    act();
  });
}

/** Say a number with its noun: "1 token", "2 tokens". */
const counted = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
