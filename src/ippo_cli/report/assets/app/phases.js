// Where the time of a run went: seconds of each phase over iterations, stacked, and their totals.
import { lineChart } from "./chart.js";
import { el, formatDuration, formatNumber, replaceChildren, section, select } from "./dom.js";
import { runLabel, store } from "./store.js";
import { onThemeChange, seriesColor, withAlpha } from "./theme.js";

// Names below time/; `environments` is a part of `rollout`.
const PHASES = [
  "rollout",
  "environments",
  "score",
  "credit",
  "logprobs",
  "targets",
  "update",
  "evaluation",
  "checkpoint",
  "opponents",
];
const PHASE_COLORS = {
  rollout: 1,
  environments: 6,
  score: 3,
  credit: 7,
  logprobs: 8,
  targets: 4,
  update: 2,
  evaluation: 5,
  checkpoint: 8,
  opponents: 7,
};
const MAX_COLUMNS = 240; // of the stack; more iterations are averaged
const STACK_HEIGHT = 200;

export function phasesSection(metrics) {
  const place = metrics.findIndex((known) => known.has("time/iteration"));
  if (place < 0) return "";
  const host = el("div", {});
  const totals = el("div", { className: "totals" });
  let chart = null;
  let run = place;
  const drawRun = () => {
    const phases = readPhases(metrics[run], store.report.runs[run].phase_seconds);
    const options = stackOptions(phases);
    if (chart) chart.update(options);
    else chart = lineChart(host, options);
    replaceChildren(totals, el("p", { className: "muted", textContent: "all iterations" }), totalRows(phases));
  };
  const known = store.report.runs.map((_, number) => number).filter((number) => metrics[number].has("time/iteration"));
  const picker =
    known.length > 1 &&
    select(
      known.map((number) => [number, runLabel(number)]),
      run,
      (value) => {
        run = Number(value);
        drawRun();
      },
      { "aria-label": "Run", id: "phase-run" },
    );
  onThemeChange(() => chart && drawRun());
  requestAnimationFrame(drawRun); // the chart needs the width of its place in the page
  return section(
    "Time by phase",
    { id: "phases" },
    picker,
    el(
      "div",
      { className: "phase-grid" },
      el("figure", { className: "panel" }, el("figcaption", { textContent: "seconds per iteration" }), host),
      totals,
    ),
  );
}

// Seconds of each phase at each iteration, without those that are always 0, and their totals over all iterations: a
// long curve has fewer points than iterations.
function readPhases(metrics, totals) {
  const whole = metrics.get("time/iteration");
  const iterations = new Map(Array.from(whole.x, (x, place) => [x, place]));
  const rows = PHASES.map((name) => ({ name, seconds: new Float64Array(whole.x.length) }));
  for (const { name, seconds } of rows) {
    const known = metrics.get(`time/${name}`);
    known?.x.forEach((x, place) => iterations.has(x) && (seconds[iterations.get(x)] = known.y[place]));
  }
  const inside = rows[PHASES.indexOf("environments")].seconds;
  rows[0].seconds.forEach((value, place) => (rows[0].seconds[place] = Math.max(0, value - inside[place])));
  const inner = totals.environments ?? 0;
  const shown = rows
    .filter(({ seconds }) => seconds.some((value) => value > 0))
    .map((row) => ({ ...row, total: Math.max(0, totals[row.name] - (row.name === "rollout" ? inner : 0)) }));
  return { x: whole.x, rows: shown };
}

function stackOptions({ x, rows }) {
  const size = Math.max(1, Math.ceil(x.length / MAX_COLUMNS));
  const at = averageGroups(x, size);
  const sums = new Array(at.length).fill(0);
  const layers = rows.map(({ name, seconds }) => {
    const own = averageGroups(seconds, size);
    own.forEach((value, place) => (sums[place] += value));
    return { name, own, top: [...sums], color: phaseColor(name) };
  });
  const series = layers.toReversed().map(({ name, own, top, color }) => ({
    label: name,
    values: top,
    shownValues: own,
    color,
    width: 1,
    fill: withAlpha(color, 0.55),
  }));
  return {
    x: at,
    series,
    bands: series
      .slice(1)
      .map((_, place) => ({ series: [place, place + 1], color: withAlpha(series[place].color, 0.55) })),
    name: "seconds per iteration by phase",
    height: STACK_HEIGHT,
    sharesZoom: false,
    yRange: (_, low, high) => [0, (high || 1) * 1.05],
  };
}

function averageGroups(values, size) {
  if (size === 1) return Array.from(values);
  const found = [];
  for (let start = 0; start < values.length; start += size) {
    const part = values.slice(start, start + size);
    found.push(part.reduce((sum, value) => sum + value, 0) / part.length);
  }
  return found;
}

function phaseColor(name) {
  return seriesColor(PHASE_COLORS[name] - 1);
}

function totalRows({ rows }) {
  const all = rows.reduce((sum, { total }) => sum + total, 0) || 1;
  return rows.map(({ name, total }) => {
    const share = (100 * total) / all;
    return el(
      "div",
      { className: "total-row" },
      el(
        "span",
        { className: "total-name" },
        el("span", { className: "swatch", style: { background: phaseColor(name) } }),
        name,
      ),
      el(
        "span",
        { className: "bar", "aria-hidden": "true" },
        el("span", { style: { width: `${share}%`, background: phaseColor(name) } }),
      ),
      el("span", { className: "number", textContent: `${formatDuration(total)} · ${formatNumber(share, 2)} %` }),
    );
  });
}
