// One floating box for the values under the pointer, or at the focus.
import { el, replaceChildren } from "./dom.js";

const box = el("div", { className: "tooltip", role: "tooltip", id: "tooltip", hidden: true });
// What the box describes may be replaced or hidden without an event of the pointer.
const watcher = new MutationObserver(hideTooltip);

// `rows`: [label, value, colour] triples.
export function showTooltip(left, top, title, rows, note) {
  if (!box.isConnected) document.body.append(box);
  replaceChildren(
    box,
    el("div", { className: "tooltip-title", textContent: title }),
    rows.map(([label, value, color]) =>
      el(
        "div",
        { className: "tooltip-row" },
        color && el("span", { className: "swatch", style: { background: color } }),
        el("span", { className: "tooltip-label", textContent: label }),
        el("span", { className: "tooltip-value", textContent: value }),
      ),
    ),
    note && el("div", { className: "tooltip-note", textContent: note }),
  );
  box.hidden = false;
  watcher.observe(document.getElementById("main"), {
    childList: true,
    subtree: true,
    attributes: true,
    attributeFilter: ["hidden"],
  });
  const { width, height } = box.getBoundingClientRect();
  const right = left + 14 + width > innerWidth;
  box.style.left = `${Math.max(4, right ? left - width - 14 : left + 14)}px`;
  box.style.top = `${Math.max(4, Math.min(top + 14, innerHeight - height - 4))}px`;
}

export function hideTooltip() {
  watcher.disconnect();
  box.hidden = true;
}
