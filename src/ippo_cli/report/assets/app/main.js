// Starts the page: reads the index, makes the tabs, and handles keys.
import { fillCritic } from "./critic.js";
import { readMetrics } from "./data.js";
import { announce, el, icon, replaceChildren } from "./dom.js";
import { fillEpisodes, moveEpisode } from "./episodes.js";
import { fillOverview } from "./overview.js";
import { fillSettings } from "./settings.js";
import { listenTo, loadReport, selectEpisode, store } from "./store.js";
import { startTheme, toggleTheme } from "./theme.js";
import { hideTooltip } from "./tooltip.js";

const KEYS = [
  ["1 – 4", "tabs"],
  ["/", "search of this tab"],
  ["j, ↓ and k, ↑", "next and previous episode"],
  ["← and →", "values of a chart, or tokens, that has the focus"],
  ["Enter", "samples of the iteration at the cursor of a chart"],
  ["drag, double click", "zoom charts, and show all iterations again"],
  ["t", "light or dark"],
  ["?", "these keys"],
];
const tabs = new Map(); // name -> {button, panel, fill, isFilled}
let currentTab = "overview";

async function start() {
  startTheme();
  const isCurrent = "DecompressionStream" in window && CSS.supports("color", "light-dark(red, blue)");
  if (!isCurrent) return showProblem("This browser is too old: use Chrome 123, Firefox 120, Safari 17.5, or newer.");
  const report = await loadReport();
  const metrics = await Promise.all(report.runs.map(readMetrics));
  document.getElementById("subtitle").textContent = `written ${report.written} by ippo-report ${report.version}`;
  addTab("overview", "Overview", (node) => fillOverview(node, metrics));
  addTab("episodes", "Episodes", fillEpisodes);
  addTab("critic", "Critic", (node) => fillCritic(node, metrics));
  addTab("settings", "Configuration", fillSettings);
  addActions();
  document.getElementById("loading").remove();
  listenTo("tab", openTab);
  listenTo("status", announce);
  listenTo("episode", (row) => currentTab !== "overview" && writeHash(`${currentTab}/${row.id}`));
  openFromHash();
  addEventListener("hashchange", openFromHash);
  document.addEventListener("keydown", handleKey);
  document.addEventListener("scroll", hideTooltip, { passive: true });
  document.documentElement.dataset.ready = "true";
}

function showProblem(text) {
  const node = document.getElementById("loading");
  node.className = "notice";
  node.textContent = text;
}

function addTab(name, title, fill) {
  const button = el("button", {
    type: "button",
    role: "tab",
    id: `tab-${name}`,
    "aria-controls": `panel-${name}`,
    textContent: title,
    on: { click: () => openTab(name), keydown: moveTab },
  });
  const panel = el("div", {
    role: "tabpanel",
    id: `panel-${name}`,
    className: `panel-${name}`,
    "aria-labelledby": `tab-${name}`,
    hidden: true,
  });
  document.getElementById("tabs").append(button);
  document.getElementById("main").append(panel);
  tabs.set(name, { button, panel, fill, isFilled: false });
}

function openTab(name) {
  currentTab = name;
  for (const [other, { button, panel }] of tabs) {
    const isOpen = other === name;
    button.setAttribute("aria-selected", String(isOpen));
    button.tabIndex = isOpen ? 0 : -1;
    panel.hidden = !isOpen;
  }
  const tab = tabs.get(name);
  if (!tab.isFilled) {
    tab.isFilled = true;
    tab.fill(tab.panel);
  }
  writeHash(store.episode && name !== "overview" && name !== "settings" ? `${name}/${store.episode.id}` : name);
}

function writeHash(text) {
  if (location.hash !== `#${text}`) history.replaceState(null, "", `#${text}`);
}

// `#episodes/12` opens a tab and an episode.
function openFromHash() {
  const [name, id] = location.hash.slice(1).split("/");
  const row = store.rows[Number(id)];
  if (id && row) selectEpisode(row);
  openTab(tabs.has(name) ? name : "overview");
}

function moveTab(event) {
  const steps = { ArrowLeft: -1, ArrowRight: 1 };
  if (!(event.key in steps)) return;
  event.preventDefault();
  event.stopPropagation();
  const names = [...tabs.keys()];
  const next = names[(names.indexOf(currentTab) + steps[event.key] + names.length) % names.length];
  openTab(next);
  tabs.get(next).button.focus();
}

function addActions() {
  const dialog = helpDialog();
  replaceChildren(
    document.getElementById("actions"),
    el(
      "button",
      {
        type: "button",
        className: "icon-button",
        id: "help-button",
        "aria-label": "Keys",
        title: "keys (?)",
        on: { click: () => dialog.showModal() },
      },
      icon("help"),
    ),
    el(
      "button",
      {
        type: "button",
        className: "icon-button",
        id: "theme-button",
        "aria-label": "Light or dark",
        title: "light or dark (t)",
        on: { click: toggleTheme },
      },
      icon("sun"),
      icon("moon"),
    ),
  );
}

function helpDialog() {
  const close = el("button", { type: "button", textContent: "close" });
  const dialog = el(
    "dialog",
    { id: "help", "aria-label": "Keys" },
    el("h2", { textContent: "Keys" }),
    el(
      "dl",
      { className: "keys" },
      KEYS.map(([key, meaning]) => [el("dt", {}, el("kbd", { textContent: key })), el("dd", { textContent: meaning })]),
    ),
    close,
  );
  close.addEventListener("click", () => dialog.close());
  document.body.append(dialog);
  return dialog;
}

function handleKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const isEpisodeTab = currentTab === "episodes" || currentTab === "critic";
  const moves = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 };
  if (isEpisodeTab && event.key in moves) {
    if (event.key.startsWith("Arrow") && currentTab === "critic") return;
    event.preventDefault();
    moveEpisode(moves[event.key]);
  } else if (event.key === "/") {
    const search = tabs.get(currentTab).panel.querySelector("[data-search]");
    if (!search) return;
    event.preventDefault();
    search.focus();
  } else if (/^[1-4]$/.test(event.key)) openTab([...tabs.keys()][Number(event.key) - 1]);
  else if (event.key === "t") toggleTheme();
  else if (event.key === "?") document.getElementById("help").showModal();
}

start().catch((error) => {
  console.error(error);
  showProblem(`This page cannot be shown: ${error.message}`);
});
