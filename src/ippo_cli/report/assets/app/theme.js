// Light and dark: follows the system until the button is used. Colours of canvases come from the style sheet.

const THEME_KEY = "ippo-report-theme";
const listeners = new Set();
const resolved = new Map();
const probe = document.createElement("span");

export function startTheme() {
  probe.hidden = true;
  document.body.append(probe);
  const stored = readStored();
  if (stored) document.documentElement.dataset.theme = stored;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", notifyTheme);
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function toggleTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem(THEME_KEY, document.documentElement.dataset.theme);
  } catch {
    // A browser may refuse storage for files.
  }
  notifyTheme();
}

export function onThemeChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

// The colour of a custom property of the style sheet, as rgb() text.
export function color(name) {
  if (!resolved.has(name)) {
    probe.style.color = `var(--${name})`;
    resolved.set(name, getComputedStyle(probe).color);
  }
  return resolved.get(name);
}

// The same colour with another opacity.
export function withAlpha(rgb, alpha) {
  const [red, green, blue] = rgb.match(/[\d.]+/g);
  return `rgba(${red}, ${green}, ${blue}, ${alpha})`;
}

// Colours of agents, configurations or phases, by number.
export function seriesColor(number) {
  return color(`series-${(number % 8) + 1}`);
}

function notifyTheme() {
  resolved.clear();
  for (const listener of listeners) listener();
}

function readStored() {
  try {
    return localStorage.getItem(THEME_KEY);
  } catch {
    return null;
  }
}
