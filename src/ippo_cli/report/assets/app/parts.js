// Small pieces that several tabs use.
import { el } from "./dom.js";

export function stateBadge(state) {
  return el("span", { className: `badge state-${state}`, textContent: state });
}

// An agent with its colour; `place`: its number.
export function agentName(name, place) {
  return el(
    "span",
    { className: "agent-name" },
    el("span", { className: "swatch", style: { background: `var(--series-${(place % 8) + 1})` } }),
    name,
  );
}

// A table that scrolls within its box when it is too wide.
export function scrollTable(headings, rows, note = "", id = null) {
  return el(
    "div",
    { className: "table-box", id },
    el(
      "div",
      { className: "scroll", tabindex: 0, role: "region", "aria-label": headings[0] },
      el(
        "table",
        {},
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            headings.map((text, place) =>
              el("th", { scope: "col", className: place ? "number" : "", textContent: text }),
            ),
          ),
        ),
        el("tbody", {}, rows),
      ),
    ),
    note && el("p", { className: "muted note", textContent: note }),
  );
}
