// The keyboard's way to a token: Tab reaches one of each text, arrow keys, Home and End move on from it.

/** Let Tab reach the token of each text that was last read, or its first one, while tokens are coloured. */
function setTokenStops(root) {
  const shown = document.body.classList.contains("origins");
  for (const text of root.querySelectorAll(".text")) {
    const stop = text.querySelector(".t[tabindex]") ?? text.querySelector(".t");
    if (stop) stop.tabIndex = shown ? 0 : -1;
  }
}

/** Call `onMove(token)` for a token that the keyboard reaches in an element, and `onChoose(token)` for Enter on it. */
function followKeys(element, onMove, onChoose) {
  element.addEventListener("focusin", ({ target }) => target.tabIndex === 0 && target.matches(".t") && onMove(target));
  element.addEventListener("focusout", () => tip.hide());
  element.addEventListener("keydown", (event) => {
    const { target, key } = event;
    if (!target.matches(".t") || event.altKey || event.ctrlKey || event.metaKey) return;
    const tokens = [...element.querySelectorAll(".t")];
    const at = tokens.indexOf(target);
    const next = tokens[{ ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tokens.length - 1 }[key]];
    if (!next && key !== "Enter") return;
    event.preventDefault();
    if (key === "Enter") return onChoose(target);
    target.removeAttribute("tabindex");
    next.tabIndex = 0;
    next.focus();
  });
}
