// Elements, icons and text. Texts of models reach the page only through textContent.

// Control characters and marks that change the direction of text, which would hide what a text contains.
const HIDDEN_CHARACTERS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const SVG = "http://www.w3.org/2000/svg";
const ICONS = {
  sun: "M12 7a5 5 0 1 0 0 10a5 5 0 0 0 0-10M12 1v3M12 20v3M4.2 4.2l2.1 2.1M17.7 17.7l2.1 2.1M1 12h3M20 12h3M4.2 19.8l2.1-2.1M17.7 6.3l2.1-2.1",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5",
  help: "M12 2a10 10 0 1 0 0 20a10 10 0 0 0 0-20M9.2 9.2a2.9 2.9 0 1 1 4.1 2.9c-.9.5-1.3 1-1.3 2M12 17.2v.1",
  previous: "M15 5l-7 7l7 7",
  next: "M9 5l7 7l-7 7",
  warning: "M12 3L2 20h20zM12 10v4M12 17v.2",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  reset: "M4 4v5h5M4.5 9A8 8 0 1 1 4 13",
};

// An element. `attributes`: properties such as className and textContent, `on` for listeners, others by setAttribute.
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "style") setStyles(node, value);
    else if (name === "className" || name === "textContent" || name === "value" || name === "checked")
      node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function setStyles(node, styles) {
  for (const [name, value] of Object.entries(styles)) {
    if (name.startsWith("--")) node.style.setProperty(name, value);
    else node.style[name] = value;
  }
}

export function replaceChildren(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

// A text with invisible characters shown as ⟨U+202E⟩; line breaks and tabs stay.
export function visibleText(text) {
  return String(text ?? "").replace(HIDDEN_CHARACTERS, (found) => {
    const code = found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    return `\u27e8U+${code}\u27e9`;
  });
}

// Four significant digits, short: 0.4296, 1.2e-6, 12,340.
export function formatNumber(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(Math.max(digits - 2, 1)).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  const text = value.toPrecision(digits);
  return text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
}

// A score with three decimals, as in the console.
export function formatScore(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return Math.abs(value) >= 100 ? formatNumber(value) : value.toFixed(3);
}

export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${formatNumber(seconds, 3)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function formatCount(number, singular, plural = `${singular}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? singular : plural}`;
}

// Call `run` once no further call came for `wait` milliseconds.
export function debounce(run, wait) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...values), wait);
  };
}

// Tell screen readers.
export function announce(text) {
  document.getElementById("live").textContent = text;
}

export function labelled(label, control, className = "field") {
  return el("label", { className }, el("span", { className: "field-label", textContent: label }), control);
}

export function select(options, value, onChange, attributes = {}) {
  const node = el("select", { ...attributes, on: { change: () => onChange(node.value) } });
  setOptions(node, options, value);
  return node;
}

// `options`: pairs of value and text.
export function setOptions(node, options, value) {
  replaceChildren(
    node,
    options.map(([key, text]) => el("option", { value: key, textContent: text })),
  );
  node.value = String(value);
}

export function section(title, attributes, ...children) {
  return el("section", { className: "card", ...attributes }, title && el("h2", { textContent: title }), ...children);
}
