// Which metrics share a chart: a panel has one metric of all agents, or of all modes of an evaluation.

export const HELD_OUT = "held-out score";
const TEAM = "team";
const APPROX_KL = "policy/approx_kl";
const ROUNDING_ERROR = 1e-7; // below it an approximate KL is that of a policy to itself
// Panels shown without a search, in this order, with their titles.
const MAIN_PANELS = new Map([
  ["score/mean", "training score"],
  ["policy/entropy", "entropy"],
  [APPROX_KL, "approximate KL"],
  ["kl/reference", "KL to the reference"],
  ["value/explained_variance", "explained variance"],
  ["value/loss", "value loss"],
  ["policy/clip_fraction", "clip fraction"],
  ["rollout/response_length", "response length"],
  ["rollout/truncated_fraction", "truncated responses"],
  ["forecast/collapse_risk", "risk of a collapse"],
  ["score/std", "standard deviation of scores"],
  ["policy/grad_norm", "gradient norm of the policy"],
  ["policy/learning_rate", "learning rate of the policy"],
]);

// Whether a panel is shown without a search: not the KL of an on-policy algorithm, which has rounding errors only.
export function isProminent(panel, metrics) {
  if (!panel.isMain || panel.id !== APPROX_KL) return panel.isMain;
  const curves = metrics.flatMap((known) => panel.entries.map(({ metric }) => known.get(metric)?.y ?? []));
  return curves.some((values) => values.some((value) => Math.abs(value) > ROUNDING_ERROR));
}

// All panels of the report: {id, title, isMain, meaning, entries: [{metric, agent, mode}]}, main ones first.
export function listPanels(report, agents) {
  const names = [...new Set(report.runs.flatMap((run) => run.metrics.names))];
  const owners = new Set([...agents, ...learners(names)]);
  const panels = new Map();
  const add = (id, entry) => {
    if (!panels.has(id))
      panels.set(id, { id, title: MAIN_PANELS.get(id) ?? id, isMain: MAIN_PANELS.has(id), meaning: "", entries: [] });
    const panel = panels.get(id);
    panel.entries.push(entry);
    panel.meaning ||= report.meanings[entry.metric] ?? "";
  };
  const primary = report.runs[0].primary_metric;
  const score = primary.slice(primary.indexOf("/") + 1);
  for (const metric of names) {
    const [first, ...rest] = metric.split("/");
    if (owners.has(first)) add(rest.join("/"), { metric, agent: first, mode: null });
    else if (first === "eval") addEvaluation(add, metric, rest, owners, score);
    else add(metric, { metric, agent: null, mode: null });
  }
  const order = [HELD_OUT, ...MAIN_PANELS.keys()];
  const place = (panel) => (order.includes(panel.id) ? order.indexOf(panel.id) : order.length);
  return [...panels.values()].sort((one, other) => place(one) - place(other) || one.id.localeCompare(other.id));
}

function addEvaluation(add, metric, [mode, ...rest], owners, score) {
  const agent = owners.has(rest[0]) ? rest[0] : null;
  const name = (agent ? rest.slice(1) : rest).join("/");
  if (!agent && name === score) add(HELD_OUT, { metric, agent: null, mode });
  else add(`eval/${mode}/${name}`, { metric, agent: agent ?? TEAM, mode: null });
}

// Groups of agents with shared weights log the metrics of a learner under their own name.
function learners(names) {
  return names
    .filter((name) => name.endsWith("/policy/learning_rate") || name.endsWith("/joint/learning_rate"))
    .map((name) => name.split("/")[0]);
}

// Panels whose name, title or meaning has all words of a search.
export function searchPanels(panels, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return panels.filter((panel) => {
    const searched =
      `${panel.id} ${panel.title} ${panel.meaning} ${panel.entries.map((entry) => entry.metric).join(" ")}`.toLowerCase();
    return words.every((word) => searched.includes(word));
  });
}
