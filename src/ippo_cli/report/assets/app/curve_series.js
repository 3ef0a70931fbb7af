// The lines of a panel: one per agent, mode and configuration or run, with intervals over seeds.
import { alignCurves, meanCurve, smooth } from "./statistics.js";
import { color, seriesColor, withAlpha } from "./theme.js";

const MODE_COLORS = { sampled: "series-4", greedy: "series-6" }; // agents have the first colours
// Of several configurations the colour tells configurations apart, and the dash agents or modes.
const DASHES = [undefined, [7, 4], [2, 3]];
const DASH_NAMES = ["solid", "dashed", "dotted"];

// Options for `lineChart`. Evaluations are not smoothed: they are few, and exact. `settings`: smoothing, isLog, mean (over seeds), hidden (names of agents, modes,
// configurations); `metrics`: the metrics of each run.
export function panelSeries(panel, report, metrics, settings) {
  const lines = mergeEqualLines(panel.entries.flatMap((entry) => entryLines(entry, panel, report, metrics, settings)));
  const curves = [];
  const bands = [];
  const series = [];
  const push = (curve, options) => {
    curves.push(curve);
    series.push(options);
  };
  for (const line of lines) {
    const weight = line.isEvaluation ? 0 : settings.smoothing;
    const y = smooth(line.curve.y, weight);
    if (weight > 0 && !line.curve.low && line.curve.x.length > 2) {
      push(line.curve, { label: line.label, color: line.color, faded: true, width: 1, inTooltip: false });
    }
    if (line.curve.low && line.curve.count > 1) {
      const place = series.length;
      const edge = { label: line.label, color: line.color, hidden: true, inTooltip: false };
      push({ x: line.curve.x, y: smooth(line.curve.high, weight) }, { ...edge });
      push({ x: line.curve.x, y: smooth(line.curve.low, weight) }, { ...edge });
      bands.push({ series: [place, place + 1], color: withAlpha(line.color, 0.16) });
    }
    const points = line.curve.x.length <= 30 || (line.isEvaluation && line.curve.x.length <= 120);
    push({ x: line.curve.x, y }, { label: line.label, color: line.color, dash: line.dash, points });
  }
  const aligned = alignCurves(curves.map(({ x, y }) => ({ x, y: settings.isLog ? positive(y) : y })));
  series.forEach((part, place) => (part.values = aligned.values[place]));
  return { x: aligned.x, series, bands, isLog: settings.isLog && hasPositive(aligned.values) };
}

// Agents with one shared score have equal lines: one line with the names of all of them.
function mergeEqualLines(lines) {
  const merged = [];
  for (const line of lines) {
    const equal = merged.find(({ curve, isEvaluation }) => isEvaluation === line.isEvaluation && haveEqualPoints(curve, line.curve));
    if (equal) equal.label = `${equal.label} = ${line.label}`;
    else merged.push({ ...line });
  }
  return merged;
}

function haveEqualPoints(one, other) {
  return ["x", "y", "low", "high"].every((key) => {
    const [values, others] = [one[key] ?? [], other[key] ?? []];
    return values.length === others.length && values.every((value, i) => value === others[i]);
  });
}

function entryLines(entry, panel, report, metrics, settings) {
  const isSingle = new Set(panel.entries.map(variantName)).size === 1;
  const variant = variantName(entry);
  if (settings.hidden.has(variant)) return [];
  const several = report.configurations.length > 1;
  const isEvaluation = entry.metric.startsWith("eval/");
  return report.configurations.flatMap((group, number) => {
    if (settings.hidden.has(`configuration ${number}`)) return [];
    const own = {
      isEvaluation,
      color: several ? seriesColor(number) : variantColor(variant, settings),
      dash: several && !isSingle ? DASHES[dashPlace(variant, settings)] : undefined,
    };
    const name = [several ? group.label : null, !isSingle || !several ? (variant ?? panel.title) : null]
      .filter(Boolean)
      .join(" · ");
    // A mean is over the runs that count in the means of scores; single lines are of all runs.
    const runs = settings.mean ? group.counted : group.runs;
    const known = runs.filter((run) => metrics[run]?.get(entry.metric)?.x.length);
    const curves = known.map((run) => metrics[run].get(entry.metric));
    if (!curves.length) return [];
    if (curves.length === 1) return [{ ...own, label: name, curve: curves[0] }];
    if (settings.mean) {
      const curve = meanCurve(curves, report.t_quantiles);
      return curve?.x.length ? [{ ...own, label: `${name} (mean of ${curves.length})`, curve }] : [];
    }
    return known.map((run, i) => ({ ...own, label: `${name} · seed ${report.runs[run].seed}`, curve: curves[i] }));
  });
}

// What tells the lines of a panel apart: the agent, or the mode of an evaluation.
export function variantName(entry) {
  return entry.agent ?? entry.mode ?? null;
}

function dashPlace(variant, settings) {
  const place = Math.max(settings.agents.indexOf(variant), Object.keys(MODE_COLORS).indexOf(variant), 0);
  return place % DASHES.length;
}

// The style of a line of an agent or mode in charts of several configurations.
export function variantDash(variant, settings) {
  return DASH_NAMES[dashPlace(variant, settings)];
}

export function variantColor(variant, settings) {
  const place = settings.agents.indexOf(variant);
  return place >= 0 ? seriesColor(place) : color(MODE_COLORS[variant] ?? "ink");
}

// Values that a logarithmic axis can show; others are gaps.
function positive(values) {
  return Array.from(values, (value) => (value > 0 ? value : null));
}

function hasPositive(columns) {
  return columns.some((values) => values.some?.((value) => value !== null && value > 0));
}
