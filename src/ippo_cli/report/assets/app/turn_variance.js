// Explained variance of the values of each turn over iterations, from the metrics of one run and agent.
import { lineChart } from "./chart.js";
import { el, labelled, section, select } from "./dom.js";
import { runLabel, store } from "./store.js";
import { color, onThemeChange, seriesColor } from "./theme.js";

const VARIANCE_HEIGHT = 260;

export function turnSection(metrics) {
  const host = el("div", {});
  const known = store.report.runs
    .flatMap((_, run) => store.agents.map((agent) => ({ run, agent, curves: turnCurves(metrics[run], agent) })))
    .filter(({ curves }) => curves.length);
  if (!known.length)
    return section(
      "Explained variance",
      { id: "turns" },
      el("p", { className: "muted", textContent: "No metrics of a critic." }),
    );
  let chart = null;
  let place = 0;
  const draw = () => {
    const { agent, curves } = known[place];
    const options = turnOptions(agent, curves);
    if (chart) chart.update(options);
    else chart = lineChart(host, options);
  };
  const label = ({ run, agent }) => (store.report.runs.length > 1 ? `${agent}, ${runLabel(run)}` : agent);
  const picker = select(
    known.map((entry, number) => [number, label(entry)]),
    0,
    (value) => {
      place = Number(value);
      draw();
    },
    { id: "turn-agent" },
  );
  onThemeChange(() => chart && draw());
  requestAnimationFrame(draw);
  return section(
    "Explained variance by turn",
    { id: "turns" },
    el("div", { className: "toolbar" }, labelled("Agent", picker)),
    host,
    el("p", {
      className: "muted note",
      textContent:
        "1 − Var(return − value) / Var(return) of the values before the update: 1 is perfect, 0 is no better than the mean.",
    }),
  );
}

function turnCurves(metrics, agent) {
  const whole = metrics.get(`${agent}/value/explained_variance`);
  const prefix = `${agent}/value/explained_variance/turn/`;
  const turns = [...metrics.keys()]
    .filter((name) => name.startsWith(prefix))
    .map((name) => [Number(name.slice(prefix.length)), metrics.get(name)])
    .sort((one, other) => one[0] - other[0]);
  return [...(whole ? [["all turns", whole]] : []), ...turns.map(([turn, curve]) => [`turn ${turn}`, curve])];
}

function turnOptions(agent, curves) {
  const x = [...new Set(curves.flatMap(([, curve]) => Array.from(curve.x)))].sort((one, other) => one - other);
  const series = curves.map(([label, curve], place) => {
    const values = new Map(Array.from(curve.x, (at, i) => [at, curve.y[i]]));
    return {
      label,
      color: label === "all turns" ? color("ink") : seriesColor(place - (curves[0][0] === "all turns" ? 1 : 0)),
      values: x.map((at) => values.get(at) ?? null),
      width: label === "all turns" ? 2 : 1.4,
    };
  });
  return {
    x,
    series,
    name: `explained variance of ${agent} by turn`,
    height: VARIANCE_HEIGHT,
    hasLegend: true,
    sharesZoom: true,
  };
}
