// What the user has set in this browser: colours, and whether the speed view is shown.

import { byId } from "./dom.js";
import { load, store } from "./storage.js";

const THEME = "antiphon-theme", SPEED = "antiphon-speed";
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const { classList } = document.documentElement;
const isDark = () => classList.contains("dark") || (!classList.contains("light") && prefersDark.matches);
const showTheme = () => byId("theme").setAttribute("aria-pressed", String(isDark()));

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

export function enableSettings() {
  const theme = load("localStorage", THEME);
  if (theme === "dark" || theme === "light") setTheme(theme);
  showTheme();
  prefersDark.addEventListener("change", showTheme);
  byId("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
  setSpeed(load("localStorage", SPEED) === "yes");
  byId("speed").addEventListener("click", () => setSpeed(!document.body.classList.contains("speed")));
}
