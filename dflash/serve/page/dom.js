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
function makeButton(label, act) {
  const button = make("button", { type: "button" }, label);
  button.addEventListener("click", act);
  return button;
}

/** Call `act` for Enter without Shift, which is the key that sends; not while an input method composes a word. */
function onEnter(field, act) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    act();
  });
}
