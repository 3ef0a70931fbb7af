// A line chart: uPlot with this page's colours, tooltip, shared zoom, markers, and keys.
import { decimate, nearestPlace } from "./decimate.js";
import { el, formatNumber } from "./dom.js";
import { color, withAlpha } from "./theme.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const MARKER_DISTANCE = 6; // pixels within which the tooltip shows the text of a marker
const DOUBLE_CLICK_MS = 250; // a second click within this time is no choice of a point
const charts = new Set();
let zoom = null; // [low, high] of all charts over iterations, or null

// Draw `options` into `host`; returns an object with `update(options)` and `destroy()`.
//
// options.x, options.series: [{label, color, values, width, dash, points, faded, hidden, fill,
// shownValues: those of the tooltip}], options.bands:
// [{series: [upper, lower], color}], options.markers: [{x, label, color}], options.isLog, options.onPick(x),
// options.title(x), options.height, options.hasLegend, options.sharesZoom, options.xLabel, options.name.
export function lineChart(host, options) {
  const chart = { host, options, plot: null, place: 0 }; // place: of the values that keys have moved to
  host.classList.add("chart");
  host.tabIndex = 0;
  host.setAttribute("role", "img");
  host.addEventListener("keydown", (event) => moveByKey(chart, event));
  host.addEventListener("blur", hideTooltip);
  const observer = new ResizeObserver(() => resize(chart));
  observer.observe(host);
  charts.add(chart);
  build(chart);
  return {
    update(next) {
      chart.options = { ...chart.options, ...next };
      build(chart);
    },
    destroy() {
      observer.disconnect();
      charts.delete(chart);
      chart.plot?.destroy();
    },
  };
}

// Zoom all charts over iterations; null shows all iterations.
export function setZoom(range) {
  zoom = range;
  for (const chart of charts) if (chart.plot && chart.options.sharesZoom) showRange(chart, zoom);
  document.dispatchEvent(new CustomEvent("report-zoom", { detail: zoom }));
}

function build(chart) {
  const { host, options } = chart;
  chart.plot?.destroy();
  host.replaceChildren();
  host.setAttribute("aria-label", describe(options));
  chart.range = options.sharesZoom ? zoom : null;
  if (options.hasLegend) host.append(chartLegend(options.series));
  chart.plot = new uPlot(plotOptions(chart), shownData(chart), host);
  if (chart.range) showRange(chart, chart.range);
}

function shownData({ host, options, range }) {
  return decimate(
    options.x,
    options.series.map((series) => series.values),
    range,
    Math.max(host.clientWidth, 80),
  );
}

// Show the points within a range of x, or all of them.
function showRange(chart, range) {
  const { x } = chart.options;
  chart.range = range;
  chart.plot.setData(shownData(chart), false);
  chart.plot.setScale("x", range ? { min: range[0], max: range[1] } : { min: x[0], max: x[x.length - 1] });
}

function describe({ name, series }) {
  const parts = series
    .filter((part) => !part.hidden && !part.faded)
    .slice(0, 6)
    .map(({ label, values, shownValues = values }) => {
      const last = shownValues[lastKnownPlace(shownValues, shownValues.length - 1)];
      return `${label} from ${formatNumber(shownValues.find((value) => value !== null && value !== undefined))} to ${formatNumber(last)}`;
    });
  return `${name}: ${parts.join(", ")}. Left and right keys move through the values.`;
}

function chartLegend(series) {
  const items = series.map(({ label, color }) =>
    el("span", {}, el("span", { className: "swatch", style: { background: color } }), label),
  );
  return el("div", { className: "chart-legend" }, items);
}

function resize(chart) {
  const width = chart.host.clientWidth;
  if (width > 0 && chart.plot && chart.plot.width !== width)
    chart.plot.setSize({ width, height: chart.options.height });
}

function plotOptions(chart) {
  const { host, options } = chart;
  const axis = {
    stroke: color("muted"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: withAlpha(color("muted"), 0.15), width: 1 },
    ticks: { show: false },
  };
  return {
    width: Math.max(host.clientWidth, 80),
    height: options.height,
    padding: [8, 10, 0, 0],
    legend: { show: false },
    scales: { x: { time: false, range: pointRange }, y: { distr: options.isLog ? 3 : 1, range: options.yRange ?? (options.isLog ? positiveRange : valueRange) } },
    axes: [
      {
        ...axis,
        size: 28,
        gap: 4,
        space: 60,
        incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e4, 2e4, 5e4, 1e5],
      },
      {
        ...axis,
        size: 52,
        gap: 6,
        space: 32,
        values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : formatNumber(tick, 3))),
      },
    ],
    series: [{}, ...options.series.map(seriesOptions)],
    bands: (options.bands ?? []).map(({ series, color: fill }) => ({ series: series.map((place) => place + 1), fill })),
    cursor: {
      sync: options.sharesZoom
        ? { key: "iterations", scales: ["x", null], filters: { pub: isMove, sub: isMove } }
        : undefined,
      drag: { x: true, y: false, setScale: false },
      points: { size: 6 },
      bind: { dblclick: () => () => resetZoom(chart) },
    },
    hooks: {
      drawClear: [(plot) => drawMarkers(plot, options.markers ?? [])],
      setSelect: [(plot) => zoomToSelection(chart, plot)],
      setCursor: [(plot) => showValues(chart, plot)],
      ready: [(plot) => listen(chart, plot)],
    },
  };
}

// The axis of x: from the first to the last point; around a single point, of which uPlot would make 0 to 100.
function pointRange(_, low, high) {
  return low === high && low !== null ? [low - 1, high + 1] : [low, high];
}

// The axis of values: uPlot's, except for a constant curve, around which uPlot shows 0 to 100 or twice the value.
function valueRange(_, low, high) {
  if (low === null || low === undefined) return [0, 1];
  if (low !== high) return uPlot.rangeNum(low, high, 0.1, true);
  const margin = low === 0 ? 1 : 0.1 * Math.abs(low);
  return low === 0 ? [0, margin] : [low - margin, low + margin];
}

function positiveRange(_, low, high) {
  return low === high && low > 0 ? [low / 10, low * 10] : uPlot.rangeLog(low, high, 10, true);
}

function resetZoom(chart) {
  clearTimeout(chart.click);
  if (chart.options.sharesZoom) setZoom(null);
  else showRange(chart, null);
}

function isMove(type) {
  return type === "mousemove" || type === "mouseleave";
}

function seriesOptions(series) {
  return {
    label: series.label,
    stroke: series.hidden ? undefined : series.faded ? withAlpha(series.color, 0.28) : series.color,
    width: series.hidden ? 0 : (series.width ?? 1.6),
    dash: series.dash,
    fill: series.fill,
    spanGaps: true,
    points: { show: series.points ?? false, size: 5, fill: series.color, stroke: series.color },
  };
}

function zoomToSelection(chart, plot) {
  const { left, width } = plot.select;
  if (width < 4) return;
  const range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  chart.isDragged = true;
  if (chart.options.sharesZoom) setZoom(range);
  else showRange(chart, range);
}

function drawMarkers(plot, markers) {
  const { ctx, bbox } = plot;
  ctx.save();
  for (const marker of markers) {
    const x = Math.round(plot.valToPos(marker.x, "x", true)) + 0.5;
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    Object.assign(ctx, { lineWidth: devicePixelRatio, lineCap: "butt", lineJoin: "miter" });
    ctx.strokeStyle = withAlpha(marker.color, 0.55);
    ctx.fillStyle = marker.color;
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    if (marker.isQuiet) continue;
    const size = 4 * devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(x - size, bbox.top);
    ctx.lineTo(x + size, bbox.top);
    ctx.lineTo(x, bbox.top + 1.6 * size);
    ctx.fill();
  }
  ctx.restore();
}

function listen(chart, plot) {
  plot.over.addEventListener("mouseenter", () => (chart.isHovered = true));
  plot.over.addEventListener("mouseleave", () => {
    chart.isHovered = false;
    hideTooltip();
  });
  plot.over.addEventListener("mousedown", () => (chart.isDragged = false));
  plot.over.addEventListener("click", () => {
    const { x, onPick } = chart.options;
    if (chart.isDragged || !x.length || !onPick) return;
    const picked = x[placeOfCursor(chart)];
    clearTimeout(chart.click);
    chart.click = setTimeout(() => onPick(picked), DOUBLE_CLICK_MS);
  });
}

function showValues(chart, plot) {
  if (!chart.isHovered) return;
  const { left, top } = plot.cursor;
  if (left < 0 || !chart.options.x.length) return hideTooltip();
  const frame = plot.over.getBoundingClientRect();
  chart.place = placeOfCursor(chart);
  showRows(chart, plot, frame.left + left, frame.top + top);
}

function placeOfCursor({ plot, options }) {
  return nearestPlace(options.x, plot.posToVal(plot.cursor.left, "x"));
}

function showRows(chart, plot, left, top) {
  const { options, place } = chart;
  const rows = options.series.flatMap((series) => {
    const values = series.shownValues ?? series.values;
    const known = lastKnownPlace(values, place);
    if (series.inTooltip === false || known < 0) return [];
    const label = known === place ? series.label : `${series.label} (at ${formatNumber(options.x[known])})`;
    return [[label, formatNumber(values[known]), series.color]];
  });
  const at = plot.valToPos(options.x[place], "x");
  const near = (options.markers ?? []).filter(
    (marker) => marker.label && Math.abs(plot.valToPos(marker.x, "x") - at) < MARKER_DISTANCE,
  );
  const title = options.title ? options.title(options.x[place], place) : `iteration ${formatNumber(options.x[place])}`;
  const note =
    near.map((marker) => marker.label).join("\n") || (options.onPick ? "click: samples of this iteration" : "");
  showTooltip(left, top, title, rows.slice(0, 16), note);
}

// The place of the value at `start`, or of the last one before it; -1 without one.
function lastKnownPlace(values, start) {
  for (let place = start; place >= 0; place--) {
    const value = values[place];
    if (value !== null && value !== undefined) return place;
  }
  return -1;
}

function moveByKey(chart, event) {
  const { plot, options } = chart;
  const last = options.x.length - 1;
  const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
  if (event.key === "Enter" && options.onPick && last >= 0) return options.onPick(options.x[chart.place]);
  if (event.key === "Escape") return hideTooltip();
  if (!(event.key in steps) || last < 0) return;
  event.preventDefault();
  event.stopPropagation();
  chart.place = Math.max(0, Math.min(last, chart.place + steps[event.key]));
  const left = plot.valToPos(options.x[chart.place], "x");
  plot.setCursor({ left, top: plot.over.clientHeight / 2 }, false);
  const frame = plot.over.getBoundingClientRect();
  showRows(chart, plot, frame.left + left, frame.top + 20);
}
