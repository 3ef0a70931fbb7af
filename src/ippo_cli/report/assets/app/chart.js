// A line chart: uPlot with this page's colours, tooltip, shared zoom, markers, and keys.
import { el, formatNumber } from "./dom.js";
import { color, withAlpha } from "./theme.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const MARKER_DISTANCE = 6; // pixels within which the tooltip shows the text of a marker
const charts = new Set();
let zoom = null; // [low, high] of all charts over iterations, or null

// Draw `options` into `host`; returns an object with `update(options)` and `destroy()`.
//
// options.x, options.series: [{label, color, values, width, dash, points, faded, hidden, fill,
// shownValues: those of the tooltip}], options.bands:
// [{series: [upper, lower], color}], options.markers: [{x, label, color}], options.isLog, options.onPick(x),
// options.title(x), options.height, options.hasLegend, options.sharesZoom, options.xLabel, options.name.
export function lineChart(host, options) {
  const chart = { host, options, plot: null, places: 0 };
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
  for (const { plot, options } of charts) if (plot && options.sharesZoom) applyZoom(plot, options);
  document.dispatchEvent(new CustomEvent("report-zoom", { detail: zoom }));
}

function build(chart) {
  const { host, options } = chart;
  chart.plot?.destroy();
  host.replaceChildren();
  host.setAttribute("aria-label", describe(options));
  const data = [options.x, ...options.series.map((series) => series.values)];
  if (options.hasLegend) host.append(chartLegend(options.series));
  chart.plot = new uPlot(plotOptions(chart), data, host);
  if (options.sharesZoom && zoom) applyZoom(chart.plot, options);
}

function describe({ name, series }) {
  const parts = series
    .filter((part) => !part.hidden && !part.faded)
    .map((part) => {
      const known = Array.from(part.shownValues ?? part.values).filter((value) => value !== null && value !== undefined);
      return `${part.label} from ${formatNumber(known[0])} to ${formatNumber(known.at(-1))}`;
    });
  return `${name}: ${parts.slice(0, 6).join(", ")}. Left and right keys move through the values.`;
}

function chartLegend(series) {
  const items = series.map(({ label, color }) => el("span", {}, el("span", { className: "swatch", style: { background: color } }), label));
  return el("div", { className: "chart-legend" }, items);
}

function resize(chart) {
  const width = chart.host.clientWidth;
  if (width > 0 && chart.plot && chart.plot.width !== width) chart.plot.setSize({ width, height: chart.options.height });
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
    scales: { x: { time: false }, y: { distr: options.isLog ? 3 : 1, range: options.yRange } },
    axes: [
      { ...axis, size: 28, gap: 4, space: 60, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e4, 2e4, 5e4, 1e5] },
      { ...axis, size: 52, gap: 6, space: 32, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : formatNumber(tick, 3))) },
    ],
    series: [{}, ...options.series.map(seriesOptions)],
    bands: (options.bands ?? []).map(({ series, color: fill }) => ({ series: series.map((place) => place + 1), fill })),
    cursor: {
      sync: options.sharesZoom ? { key: "iterations", scales: ["x", null], filters: { pub: isMove, sub: isMove } } : undefined,
      drag: { x: true, y: false, setScale: false },
      points: { size: 6 },
      bind: { dblclick: () => () => (options.sharesZoom ? setZoom(null) : chart.plot.setScale("x", { min: null, max: null })) },
    },
    hooks: {
      drawClear: [(plot) => drawMarkers(plot, options.markers ?? [])],
      setSelect: [(plot) => zoomToSelection(chart, plot)],
      setCursor: [(plot) => showValues(chart, plot)],
      ready: [(plot) => listen(chart, plot)],
    },
  };
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

function applyZoom(plot, options) {
  const [first, last] = [options.x[0], options.x[options.x.length - 1]];
  plot.setScale("x", zoom ? { min: zoom[0], max: zoom[1] } : { min: first, max: last });
}

function zoomToSelection(chart, plot) {
  const { left, width } = plot.select;
  if (width < 4) return;
  const range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  chart.isDragged = true;
  if (chart.options.sharesZoom) setZoom(range);
  else plot.setScale("x", { min: range[0], max: range[1] });
}

function drawMarkers(plot, markers) {
  const { ctx, bbox } = plot;
  ctx.save();
  for (const marker of markers) {
    const x = Math.round(plot.valToPos(marker.x, "x", true)) + 0.5;
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
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
    if (!chart.isDragged && plot.cursor.idx !== null && chart.options.onPick) chart.options.onPick(chart.options.x[plot.cursor.idx]);
  });
}

function showValues(chart, plot) {
  if (!chart.isHovered) return;
  const { left, top, idx } = plot.cursor;
  if (left < 0 || idx === null || idx === undefined) return hideTooltip();
  const frame = plot.over.getBoundingClientRect();
  showRows(chart, plot, idx, frame.left + left, frame.top + top);
}

function showRows(chart, plot, idx, left, top) {
  const { options } = chart;
  const rows = options.series.flatMap((series) => {
    const value = nearestValue(series.shownValues ?? series.values, idx);
    return series.inTooltip === false || value === null ? [] : [[series.label, formatNumber(value), series.color]];
  });
  const at = plot.valToPos(options.x[idx], "x");
  const near = (options.markers ?? []).filter((marker) => marker.label && Math.abs(plot.valToPos(marker.x, "x") - at) < MARKER_DISTANCE);
  const title = options.title ? options.title(options.x[idx], idx) : `iteration ${formatNumber(options.x[idx])}`;
  const note = near.map((marker) => marker.label).join("\n") || (options.onPick ? "click: samples of this iteration" : "");
  showTooltip(left, top, title, rows.slice(0, 16), note);
}

// The value at a place, or the nearest one before it within the curve.
function nearestValue(values, idx) {
  for (let place = idx; place >= 0 && idx - place < 500; place--) {
    const value = values[place];
    if (value !== null && value !== undefined) return value;
  }
  return null;
}

function moveByKey(chart, event) {
  const { plot, options } = chart;
  const last = options.x.length - 1;
  const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
  if (event.key === "Enter" && options.onPick && plot.cursor.idx !== null) return options.onPick(options.x[plot.cursor.idx]);
  if (event.key === "Escape") return hideTooltip();
  if (!(event.key in steps) || last < 0) return;
  event.preventDefault();
  event.stopPropagation();
  const idx = Math.max(0, Math.min(last, (plot.cursor.idx ?? 0) + steps[event.key]));
  const left = plot.valToPos(options.x[idx], "x");
  plot.setCursor({ left, top: plot.over.clientHeight / 2 }, false);
  plot.cursor.idx = idx;
  const frame = plot.over.getBoundingClientRect();
  showRows(chart, plot, idx, frame.left + left, frame.top + 20);
}
