// Several runs: means over seeds, paired differences, and a table of runs.
import { lineChart } from "./chart.js";
import { el, formatCount, formatDuration, formatScore, section, select } from "./dom.js";
import { scrollTable, stateBadge } from "./parts.js";
import { meanCurve, subtractCurves } from "./statistics.js";
import { store } from "./store.js";
import { color, onThemeChange, withAlpha } from "./theme.js";

// Means of configurations, differences between them, and the runs.
export function comparisonSection(metrics) {
  const { report } = store;
  return section(
    "Configurations",
    { id: "comparison" },
    configurationTable(),
    report.differences.length > 0 && differenceTable(),
    report.differences.length > 0 && differenceChart(metrics),
    runTable(),
  );
}

function configurationTable() {
  const { report } = store;
  const rows = report.configurations.map((group, place) => {
    const score = group.scores.score ?? {};
    return el(
      "tr",
      {},
      el(
        "th",
        { scope: "row" },
        el("span", { className: "swatch", style: { background: seriesColorVariable(place) } }),
        group.label,
      ),
      ...["first", "last", "best"].map((which) =>
        el("td", { className: "number", textContent: formatMean(score[which]) }),
      ),
      el("td", { className: "number", textContent: String(group.counted.length) }),
    );
  });
  const note =
    "Held-out score: mean over seeds with a 95 % interval of Student's t, which may exceed the range of scores. Runs that are not done count only where none is done.";
  return scrollTable(["configuration", "first", "last", "best", "runs"], rows, note);
}

function seriesColorVariable(place) {
  return `var(--series-${(place % 8) + 1})`;
}

function formatMean(mean) {
  if (!mean) return "–";
  return mean.low === null
    ? formatScore(mean.mean)
    : `${formatScore(mean.mean)} [${formatScore(mean.low)}, ${formatScore(mean.high)}]`;
}

function differenceTable() {
  const { configurations, differences } = store.report;
  const rows = differences.map(({ one, other, seeds, difference }) => {
    const isClear = difference.low !== null && (difference.low > 0 || difference.high < 0);
    return el(
      "tr",
      { className: isClear ? "clear" : "" },
      el("th", { scope: "row", textContent: `${configurations[one].label} − ${configurations[other].label}` }),
      el("td", { className: "number", textContent: formatMean(difference) }),
      el("td", { className: "number", textContent: String(seeds.length) }),
    );
  });
  const note = "Last held-out score, paired by seed, with a 95 % t-interval; bold where the interval excludes 0.";
  return scrollTable(["paired difference", "last", "seeds"], rows, note, "differences");
}

// The paired difference of the held-out score over iterations, for a chosen pair of configurations.
function differenceChart(metrics) {
  const { configurations, differences } = store.report;
  const host = el("div", {});
  let chart = null;
  let chosen = 0;
  const label = ({ one, other }) => `${configurations[one].label} − ${configurations[other].label}`;
  const picker = select(
    differences.map((pair, place) => [place, label(pair)]),
    0,
    (value) => {
      chosen = Number(value);
      draw();
    },
    { id: "difference-pair" },
  );
  const draw = () => {
    const options = differenceOptions(differences[chosen], metrics, label(differences[chosen]));
    if (chart) chart.update(options);
    else chart = lineChart(host, options);
  };
  onThemeChange(() => chart && draw());
  requestAnimationFrame(draw);
  return el(
    "figure",
    { className: "panel difference" },
    el(
      "figcaption",
      {},
      el("span", { className: "panel-title", textContent: "difference of held-out scores" }),
      differences.length > 1 ? picker : el("span", { className: "muted", textContent: label(differences[0]) }),
    ),
    host,
  );
}

function differenceOptions({ one, other }, metrics, name) {
  const { runs, t_quantiles: tQuantiles } = store.report;
  const score = (run) => metrics[run].get(`eval/${runs[run].primary_metric}`);
  const pairs = store.report.configurations[one].counted.flatMap((run) =>
    store.report.configurations[other].counted
      .filter((rival) => runs[rival].seed === runs[run].seed)
      .map((rival) => [score(run), score(rival)]),
  );
  const curves = pairs.filter(([own, rival]) => own && rival).map(([own, rival]) => subtractCurves(own, rival));
  const mean = meanCurve(curves, tQuantiles) ?? { x: [], y: [], low: [], high: [], count: 0 };
  const edge = { label: "limit", color: color("accent"), hidden: true, inTooltip: false };
  const band =
    mean.count > 1
      ? [
          { ...edge, values: mean.high },
          { ...edge, values: mean.low },
        ]
      : [];
  return {
    x: mean.x,
    series: [
      ...band,
      { label: "difference", color: color("accent"), values: mean.y, points: mean.x.length <= 120 },
      { label: "0", color: color("muted"), values: mean.x.map(() => 0), width: 1, dash: [4, 4], inTooltip: false },
    ],
    bands: band.length ? [{ series: [0, 1], color: withAlpha(color("accent"), 0.16) }] : [],
    name: `difference of held-out scores, ${name}`,
    height: 170,
    sharesZoom: true,
  };
}

function runTable() {
  const { report } = store;
  const rows = report.runs.map((run, place) =>
    el(
      "tr",
      {},
      el(
        "th",
        { scope: "row" },
        el("span", { className: "swatch", style: { background: seriesColorVariable(store.configurationOf[place]) } }),
        run.name,
      ),
      el("td", { className: "number" }, stateBadge(run.state)),
      el("td", { className: "number", textContent: String(run.seed ?? "–") }),
      el("td", { className: "number", textContent: String(run.iterations) }),
      ...["first", "last", "best"].map((which) =>
        el("td", { className: "number", textContent: formatScore(run.evaluation[which]?.score) }),
      ),
      el("td", { className: "number", textContent: formatDuration(run.wall_seconds) }),
    ),
  );
  const table = scrollTable(["run", "state", "seed", "iterations", "first", "last", "best", "time"], rows);
  return el(
    "details",
    { open: report.runs.length <= 12 },
    el("summary", { textContent: formatCount(report.runs.length, "run") }),
    table,
  );
}
