// What the user has set in this browser: colours, the quote before the answer, and whether the speed view is shown.

import { byId } from "./dom.js";
import { load, store } from "./storage.js";

const THEME = "antiphon-theme", SPEED = "antiphon-speed", QUOTE = "antiphon-quote-first";
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const { classList } = document.documentElement;
const isDark = () => classList.contains("dark") || (!classList.contains("light") && prefersDark.matches);
const showTheme = () => { byId("theme").checked = isDark(); };

function setTheme(name) {
  classList.remove("dark", "light");
  classList.add(name);
  showTheme();
  store("localStorage", THEME, name);
}

function setSpeed(isShown) {
  document.body.classList.toggle("speed", isShown);
  byId("speed").setAttribute("aria-pressed", String(isShown));
  store("localStorage", SPEED, isShown ? "yes" : "no");
}

function setQuoteFirst(isShown) {
  document.body.classList.toggle("no-quote", !isShown);
  byId("quote-first").checked = isShown;
  store("localStorage", QUOTE, isShown ? "yes" : "no");
}

export function enableSettings() {
  const theme = load("localStorage", THEME);
  if (theme === "dark" || theme === "light") setTheme(theme);
  showTheme();
  prefersDark.addEventListener("change", showTheme);
  byId("theme").addEventListener("change", () => setTheme(byId("theme").checked ? "dark" : "light"));
  setSpeed(load("localStorage", SPEED) === "yes");
  byId("speed").addEventListener("click", () => setSpeed(!document.body.classList.contains("speed")));
  setQuoteFirst(load("localStorage", QUOTE) !== "no");
  byId("quote-first").addEventListener("change", () => setQuoteFirst(byId("quote-first").checked));
}
