// The first tab: state and scores, warnings, comparison of configurations, curves, and where the time went.
import { curvesSection } from "./curves.js";
import { el, formatDuration, formatScore, icon, section } from "./dom.js";
import { agentName, scrollTable, stateBadge } from "./parts.js";
import { phasesSection } from "./phases.js";
import { showSamples, store } from "./store.js";

export function fillOverview(node, metrics) {
  const { report } = store;
  node.append(
    ...notices(),
    report.runs.length === 1 ? runCards(report.runs[0]) : comparison(),
    warningsSection(),
    curvesSection(metrics),
    phasesSection(metrics),
  );
}

function notices() {
  return store.report.notes.map((text) => el("p", { className: "notice", textContent: text }));
}

function runCards(run) {
  const { first, last, best } = run.evaluation;
  const planned = run.planned_iterations;
  return el(
    "div",
    { className: "cards", id: "cards" },
    card("State", stateBadge(run.state), run.error ?? `${run.iterations}${planned ? ` of ${planned}` : ""} iterations in ${formatDuration(run.wall_seconds)}`, run.error ? "bad" : ""),
    first && card(`Held-out score (${run.primary_metric})`, scoreChange(first.score, last.score), `best ${formatScore(best.score)} after iteration ${best.iteration}`),
    ...otherScores(run).map(([name, from, to]) => card(name, scoreChange(from, to), "first and last evaluation")),
    card("Agents", el("span", { className: "agents" }, run.agents.map((name, place) => agentName(name, place))), run.task ? `task ${run.task}, seed ${run.seed}` : ""),
  );
}

// The score in the other mode, and up to two parts of the score.
function otherScores(run) {
  const { first, last } = run.evaluation;
  if (!first) return [];
  const names = Object.keys(last).filter((name) => {
    const [mode, ...rest] = name.split("/");
    return ["sampled", "greedy"].includes(mode) && rest.length === 1 && name !== run.primary_metric && rest[0] !== "failed_fraction";
  });
  const order = (name) => (name === "greedy/score" || name === "sampled/score" ? 0 : name.startsWith("greedy/") ? 1 : 2);
  return names.sort((one, other) => order(one) - order(other)).slice(0, 2).map((name) => [name, first[name], last[name]]);
}

function scoreChange(from, to) {
  return el("span", { className: "change" }, el("span", { className: "muted", textContent: formatScore(from) }), el("span", { className: "arrow", "aria-label": "to", textContent: "→" }), el("strong", { textContent: formatScore(to) }));
}

function card(title, value, note, className = "") {
  return el(
    "div",
    { className: `card figure-card ${className}` },
    el("h2", { textContent: title }),
    el("div", { className: "figure-value" }, value),
    note && el("p", { className: "muted", textContent: note }),
  );
}

function comparison() {
  const { report } = store;
  return section("Configurations", { id: "comparison" }, configurationTable(), report.differences.length > 0 && differenceTable(), runTable());
}

function configurationTable() {
  const { report } = store;
  const rows = report.configurations.map((group, place) => {
    const score = group.scores.score ?? {};
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, el("span", { className: "swatch", style: { background: seriesColorVariable(place) } }), group.label),
      ...["first", "last", "best"].map((which) => el("td", { className: "number", textContent: formatMean(score[which]) })),
      el("td", { className: "number", textContent: String(group.counted.length) }),
    );
  });
  const note = "Held-out score: mean over seeds with a 95 % t-interval. Runs that are not done count only where none is done.";
  return scrollTable(["configuration", "first", "last", "best", "runs"], rows, note);
}

function seriesColorVariable(place) {
  return `var(--series-${(place % 8) + 1})`;
}

function formatMean(mean) {
  if (!mean) return "–";
  return mean.low === null ? formatScore(mean.mean) : `${formatScore(mean.mean)} [${formatScore(mean.low)}, ${formatScore(mean.high)}]`;
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

function runTable() {
  const { report } = store;
  const rows = report.runs.map((run, place) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, el("span", { className: "swatch", style: { background: seriesColorVariable(store.configurationOf[place]) } }), run.name),
      el("td", {}, stateBadge(run.state)),
      el("td", { className: "number", textContent: String(run.seed ?? "–") }),
      el("td", { className: "number", textContent: String(run.iterations) }),
      ...["first", "last", "best"].map((which) => el("td", { className: "number", textContent: formatScore(run.evaluation[which]?.score) })),
      el("td", { className: "number", textContent: formatDuration(run.wall_seconds) }),
    ),
  );
  const table = scrollTable(["run", "state", "seed", "iterations", "first", "last", "best", "time"], rows);
  return el("details", { open: report.runs.length <= 12 }, el("summary", { textContent: `${report.runs.length} runs` }), table);
}

function warningsSection() {
  const { report } = store;
  const items = report.runs.flatMap((run, place) => run.warnings.map((warning) => warningItem(run, place, warning)));
  if (!items.length) return "";
  return section(`Warnings (${items.length})`, { id: "warnings" }, el("ul", { className: "warnings" }, items));
}

function warningItem(run, place, warning) {
  const where = typeof warning.iteration === "number" ? `iteration ${warning.iteration}` : null;
  return el(
    "li",
    {},
    icon("warning"),
    el("span", {}, store.report.runs.length > 1 && el("strong", { textContent: `${run.name}: ` }), warning.text),
    where && (store.rows.length ? el("button", { type: "button", className: "link", textContent: where, on: { click: () => showSamples(warning.iteration, place) } }) : el("span", { className: "muted", textContent: where })),
  );
}
