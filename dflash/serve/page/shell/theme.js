// Colours of the page: as the system has them, light, or dark. And whether tokens are coloured by their origin.

const THEMES = ["auto", "light", "dark"];

/** Read or write what this browser keeps for all tabs; a browser may refuse that. */
const remembered = {
  get(name) {
    try {
      return localStorage.getItem(`dflash.${name}`);
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`dflash.${name}`, value);
    } catch {
      // a private window: it is forgotten with the tab
    }
  },
};

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-label", `Theme: ${theme}`);
  byId("theme").title = `Theme: ${theme}`;
}

function nextTheme() {
  const theme = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  remembered.set("theme", theme);
  showTheme(theme);
}

/** Colour tokens by their origin, or not. */
function showOrigins(shown) {
  remembered.set("origins", shown ? "on" : "off");
  document.body.classList.toggle("origins", shown);
  byId("origins").checked = shown;
  setTokenStops(document);
  tip.hide();
}
