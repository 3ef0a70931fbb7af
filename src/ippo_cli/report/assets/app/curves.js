// The curves of the overview: controls, the chart of the held-out score, and one chart per metric.
import { lineChart, setZoom } from "./chart.js";
import { panelSeries, variantColor, variantDash, variantName } from "./curve_series.js";
import { announce, debounce, el, formatCount, icon, labelled, replaceChildren, section } from "./dom.js";
import { HELD_OUT, isProminent, listPanels, searchPanels } from "./panels.js";
import { showSamples, store } from "./store.js";
import { color, onThemeChange, seriesColor } from "./theme.js";

const MAX_PANELS = 60; // of a search
const HERO_HEIGHT = 300;
const PANEL_HEIGHT = 190;

const curveSettings = { smoothing: 0, isLog: false, mean: true, hidden: new Set(), agents: [], search: "" };
const shown = new Map(); // panel id -> {node, chart, isDirty, isVisible}
let allPanels = [];
let runMetrics = [];
let observer = null;

// The section of curves. `metrics`: the metrics of each run.
export function curvesSection(metrics) {
  runMetrics = metrics;
  curveSettings.agents = store.agents;
  allPanels = listPanels(store.report, store.agents);
  observer = new IntersectionObserver(onVisible, { rootMargin: "200px" });
  onThemeChange(redrawAll);
  const grid = el("div", { className: "panels", id: "panels" });
  const node = section("Curves", { id: "curves" }, controls(grid), legend(), grid);
  fillGrid(grid);
  return node;
}

function controls(grid) {
  const smoothing = el("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, id: "smoothing" });
  const weight = el("output", { className: "muted", textContent: "0" });
  let frame = 0;
  smoothing.addEventListener("input", () => {
    curveSettings.smoothing = Number(smoothing.value);
    weight.textContent = smoothing.value;
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(redrawAll); // a slider may send several values per frame
  });
  const log = toggleButton("log axis", false, (on) => (curveSettings.isLog = on));
  const search = el("input", {
    type: "search",
    id: "metric-search",
    placeholder: `search ${allPanels.length} metrics`,
    "data-search": "overview",
  });
  const find = debounce(() => {
    curveSettings.search = search.value;
    fillGrid(grid);
  }, 150);
  search.addEventListener("input", find);
  const everything = el("button", {
    type: "button",
    id: "all-metrics",
    textContent: "all metrics",
    on: {
      click: () => {
        search.value = "/";
        find();
      },
    },
  });
  const reset = el(
    "button",
    { type: "button", id: "reset-zoom", disabled: true, on: { click: () => setZoom(null) } },
    icon("reset"),
    "reset zoom",
  );
  document.addEventListener("report-zoom", (event) => (reset.disabled = event.detail === null));
  return el(
    "div",
    { className: "toolbar" },
    labelled("Metrics", search, "field grow"),
    everything,
    labelled("Smoothing", el("span", { className: "slider" }, smoothing, weight)),
    log,
    hasSeeds() && toggleButton("mean over seeds", true, (on) => (curveSettings.mean = on)),
    reset,
  );
}

function hasSeeds() {
  return store.report.configurations.some((group) => group.runs.length > 1);
}

function toggleButton(label, on, change) {
  const button = el("button", { type: "button", className: "toggle", "aria-pressed": String(on), textContent: label });
  button.addEventListener("click", () => {
    const next = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(next));
    change(next);
    redrawAll();
  });
  return button;
}

// Buttons that hide configurations, agents and modes in all charts.
function legend() {
  const { configurations } = store.report;
  const several = configurations.length > 1;
  const variants = [...new Set(allPanels.flatMap((panel) => panel.entries.map(variantName)))].filter(
    (name) => name !== null,
  );
  const list = el("div", { className: "legend", role: "group", "aria-label": "Lines" });
  const fill = () =>
    replaceChildren(
      list,
      several &&
        configurations.map((group, number) =>
          legendButton(group.label, `configuration ${number}`, seriesColor(number)),
        ),
      variants.map((name) =>
        legendButton(
          name,
          name,
          several ? null : variantColor(name, curveSettings),
          several && variantDash(name, curveSettings),
        ),
      ),
    );
  fill();
  onThemeChange(fill);
  return list;
}

function legendButton(label, key, swatch, dash) {
  const button = el(
    "button",
    { type: "button", className: "legend-item", "aria-pressed": String(!curveSettings.hidden.has(key)) },
    swatch && el("span", { className: "swatch", style: { background: swatch } }),
    dash && el("span", { className: "dash", style: { borderTopStyle: dash } }),
    el("span", { className: "legend-label", textContent: label }),
  );
  button.addEventListener("click", () => {
    const hide = !curveSettings.hidden.has(key);
    curveSettings.hidden[hide ? "add" : "delete"](key);
    button.setAttribute("aria-pressed", String(!hide));
    redrawAll();
  });
  return button;
}

function fillGrid(grid) {
  const wanted = curveSettings.search.trim()
    ? searchPanels(allPanels, curveSettings.search)
    : allPanels.filter((panel) => panel.id === HELD_OUT || isProminent(panel, runMetrics));
  const part = wanted.slice(0, MAX_PANELS);
  for (const [id, panel] of shown) {
    if (!part.some((other) => other.id === id)) {
      panel.chart?.destroy();
      observer.unobserve(panel.node);
      shown.delete(id);
    }
  }
  const rest = wanted.length - part.length;
  replaceChildren(
    grid,
    part.map(panelNode),
    rest > 0 && el("p", { className: "muted", textContent: `and ${rest} more: use more words` }),
  );
  if (!wanted.length) grid.append(el("p", { className: "muted empty", textContent: missingMetrics() }));
  announce(`${formatCount(wanted.length, "chart")}`);
}

function missingMetrics() {
  return allPanels.length ? "No metric has these words." : "No metrics yet: no iteration has ended.";
}

function panelNode(panel) {
  if (!shown.has(panel.id)) {
    const host = el("div", {});
    const node = el(
      "figure",
      { className: panel.id === HELD_OUT ? "panel hero" : "panel", "data-panel": panel.id },
      el(
        "figcaption",
        { title: panel.meaning || null },
        el("span", { className: "panel-title", textContent: panel.title }),
        panel.title !== panel.id && el("code", { textContent: panel.id }),
      ),
      host,
    );
    shown.set(panel.id, { panel, node, host, chart: null, isDirty: true, isVisible: false });
    observer.observe(node);
  }
  return shown.get(panel.id).node;
}

function onVisible(entries) {
  for (const entry of entries) {
    const known = [...shown.values()].find((panel) => panel.node === entry.target);
    if (!known) continue;
    known.isVisible = entry.isIntersecting;
    if (known.isVisible && known.isDirty) draw(known);
  }
}

function redrawAll() {
  for (const known of shown.values()) {
    known.isDirty = true;
    if (known.isVisible) draw(known);
  }
}

function draw(known) {
  const { panel, host } = known;
  const options = {
    ...panelSeries(panel, store.report, runMetrics, curveSettings),
    name: panel.title,
    height: panel.id === HELD_OUT ? HERO_HEIGHT : PANEL_HEIGHT,
    markers: warningMarkers(),
    sharesZoom: true,
    onPick: store.rows.length ? (iteration) => showSamples(iteration) : null,
  };
  known.isDirty = false;
  known.node.classList.toggle("no-lines", !options.series.length);
  if (known.chart) known.chart.update(options);
  else known.chart = lineChart(host, options);
}

// Warnings that are known to belong to an iteration, where they happened; one marker per iteration.
function warningMarkers() {
  const found = new Map();
  for (const [place, run] of store.report.runs.entries()) {
    if (curveSettings.hidden.has(`configuration ${store.configurationOf[place]}`)) continue;
    for (const { iteration, text } of run.warnings) {
      if (iteration) found.set(iteration, new Set([...(found.get(iteration) ?? []), `warning: ${text}`]));
    }
  }
  return [...found].map(([x, labels]) => ({ x, label: [...labels].join("\n"), color: color("warn") }));
}
