// A short note with the chance to undo what was done.

const TOAST_MS = 8000;
let toastTimer = null;

/** Show a note for some seconds; `undo`, if given, runs when its button is pressed. */
function toast(text, undo = null) {
  const root = byId("toast");
  const hide = () => {
    clearTimeout(toastTimer);
    root.replaceChildren();
    root.hidden = true;
  };
  const again = undo && makeButton("Undo", () => {
    hide();
    undo();
  }, { class: "quiet" });
  root.replaceChildren(...[make("span", {}, text), again, iconButton("close", "Close this note", hide)].filter(Boolean));
  root.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(hide, TOAST_MS);
}
