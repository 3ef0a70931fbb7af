// The first tab: state and scores, warnings, comparison of configurations, curves, and where the time went.
import { comparisonSection } from "./comparison.js";
import { curvesSection } from "./curves.js";
import { el, formatCount, formatDuration, formatScore, icon, section } from "./dom.js";
import { agentName, stateBadge } from "./parts.js";
import { phasesSection } from "./phases.js";
import { showSamples, store } from "./store.js";

export function fillOverview(node, metrics) {
  const { report } = store;
  node.append(
    ...notices(),
    report.runs.length === 1 ? runCards(report.runs[0]) : comparisonSection(metrics),
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
    card(
      "State",
      stateBadge(run.state),
      run.error ??
        `${planned ? `${run.iterations} of ` : ""}${formatCount(planned || run.iterations, "iteration")} in ${formatDuration(run.wall_seconds)}` +
        (run.logged_iterations < run.iterations ? `; metrics of ${run.logged_iterations} are here` : ""),
      run.error ? "bad" : "",
    ),
    first &&
      card(
        `Held-out score (${run.primary_metric})`,
        scoreChange(first.score, last.score),
        best ? `best ${formatScore(best.score)} after iteration ${best.iteration}` : "no best score",
      ),
    ...otherScores(run).map(([name, from, to]) => card(name, scoreChange(from, to), "first and last evaluation")),
    card(
      "Agents",
      el(
        "span",
        { className: "agents" },
        run.agents.map((name, place) => agentName(name, place)),
      ),
      run.task ? `task ${run.task}, seed ${run.seed}` : "",
    ),
  );
}

// The score in the other mode, and up to two parts of the score.
function otherScores(run) {
  const { first, last } = run.evaluation;
  if (!first) return [];
  const names = Object.keys(last).filter((name) => {
    const [mode, ...rest] = name.split("/");
    return (
      ["sampled", "greedy"].includes(mode) &&
      rest.length === 1 &&
      name !== run.primary_metric &&
      rest[0] !== "failed_fraction"
    );
  });
  const order = (name) =>
    name === "greedy/score" || name === "sampled/score" ? 0 : name.startsWith("greedy/") ? 1 : 2;
  const isNew = (name, place, all) =>
    !all.slice(0, place).some((other) => first[other] === first[name] && last[other] === last[name]);
  return names
    .sort((one, other) => order(one) - order(other))
    .filter(isNew)
    .filter((name) => first[name] !== first.score || last[name] !== last.score)
    .slice(0, 2)
    .map((name) => [name, first[name], last[name]]);
}

function scoreChange(from, to) {
  return el(
    "span",
    { className: "change" },
    el("span", { className: "muted", textContent: formatScore(from) }),
    el("span", { className: "arrow", "aria-label": "to", textContent: "→" }),
    el("strong", { textContent: formatScore(to) }),
  );
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

function warningsSection() {
  const byText = new Map();
  for (const [place, run] of store.report.runs.entries()) {
    for (const { text, iteration } of run.warnings) {
      if (!byText.has(text)) byText.set(text, []);
      byText.get(text).push({ place, run, iteration });
    }
  }
  if (!byText.size) return "";
  const items = [...byText].map(([text, places]) =>
    el(
      "li",
      {},
      icon("warning"),
      el("span", { textContent: text }),
      el("span", { className: "warning-places" }, places.map(warningPlace)),
    ),
  );
  return section(`Warnings (${byText.size})`, { id: "warnings" }, el("ul", { className: "warnings" }, items));
}

// The run and the iteration of a warning, with a link to samples.
function warningPlace({ place, run, iteration }) {
  const when = iteration ? `iteration ${iteration}` : iteration === 0 ? "before training" : null;
  const label = [store.report.runs.length > 1 && run.name, when].filter(Boolean).join(", ");
  if (!iteration || !store.rows.length) return el("span", { className: "muted", textContent: label });
  return el("button", {
    type: "button",
    className: "link",
    textContent: label,
    on: { click: () => showSamples(iteration, place) },
  });
}
