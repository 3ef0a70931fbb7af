// Filters of episodes: what they select, their controls, and the search through all texts.
import { readJson } from "./data.js";
import { debounce, el, labelled, select } from "./dom.js";
import { runLabel, store } from "./store.js";

const ANY = "any";
const NO_FILTERS = {
  text: "",
  agent: "",
  low: null,
  high: null,
  run: ANY,
  mode: ANY,
  iteration: ANY,
  truncated: ANY,
  failed: ANY,
  zero_variance: ANY,
};
export const FLAG_NAMES = { truncated: "truncated", failed: "failed", zero_variance: "equal-score group" };
const texts = new Map(); // file -> lower-case text of each episode

export const filters = { ...NO_FILTERS };

// The score that filters and histogram use: the mean over agents, or of one agent.
export function scoreOf(row) {
  return filters.agent ? (row.agents[filters.agent] ?? null) : row.score;
}

// Rows that pass all filters; `ignoreScore` leaves out the range of scores, for the histogram.
export function filterRows(rows, ignoreScore = false) {
  const words = filters.text.toLowerCase().trim();
  return rows.filter((row) => {
    if (filters.run !== ANY && row.run !== Number(filters.run)) return false;
    if (filters.mode !== ANY && row.mode !== filters.mode && row.sampling !== filters.mode) return false;
    if (filters.iteration !== ANY && row.iteration !== Number(filters.iteration)) return false;
    for (const flag of Object.keys(FLAG_NAMES))
      if (filters[flag] !== ANY && row[flag] !== (filters[flag] === "only")) return false;
    if (words && !texts.get(row.file)?.[row.place]?.includes(words)) return false;
    return ignoreScore || inRange(scoreOf(row));
  });
}

function inRange(score) {
  if (filters.low === null && filters.high === null) return true;
  if (score === null) return false;
  return (
    (filters.low === null || score >= filters.low - 1e-9) && (filters.high === null || score <= filters.high + 1e-9)
  );
}

// Read all texts of the page, once, for a search.
async function loadTexts() {
  await Promise.all(
    store.report.files.map(async (file, number) => {
      if (!file.text || texts.has(number)) return;
      const episodes = await readJson(file.text);
      texts.set(number, episodes.map(episodeText));
    }),
  );
}

function episodeText(episode) {
  const parts = episode.turns.flatMap((turn) => [turn.observation, turn.response]);
  return [...parts, episode.failure, episode.truncation]
    .filter((part) => typeof part === "string")
    .join("\n")
    .toLowerCase();
}

// The controls; `onChange` is called after each change. Returns the node and `set(values)`.
export function filterControls(onChange) {
  const { report, agents, rows } = store;
  const change = (name) => (value) => {
    filters[name] = value;
    onChange();
  };
  const text = el("input", {
    type: "search",
    id: "episode-search",
    placeholder: "search texts",
    "data-search": "episodes",
  });
  text.addEventListener(
    "input",
    debounce(async () => {
      if (text.value.trim()) await loadTexts();
      change("text")(text.value);
    }, 200),
  );
  const low = scoreInput("lowest score", (value) => change("low")(value));
  const high = scoreInput("highest score", (value) => change("high")(value));
  const iterations = [...new Set(rows.map((row) => row.iteration))].sort((one, other) => one - other);
  const modes = [...new Set(rows.map((row) => row.mode))].map((mode) => [mode, mode === "eval" ? "evaluation" : "training"]);
  const samplings = new Set(rows.filter((row) => row.mode === "eval").map((row) => row.sampling));
  if (samplings.size > 1) modes.push(...[...samplings].map((name) => [name, `evaluation, ${name}`]));
  const controls = {
    run: select([[ANY, "all runs"], ...report.runs.map((_, place) => [place, runLabel(place)])], ANY, change("run"), {
      id: "filter-run",
    }),
    mode: select(
      [[ANY, "all"], ...modes],
      ANY,
      change("mode"),
      { id: "filter-mode" },
    ),
    iteration: select(
      [[ANY, "all"], ...iterations.map((number) => [number, String(number)])],
      ANY,
      change("iteration"),
      { id: "filter-iteration" },
    ),
    agent: select([["", "mean of agents"], ...agents.map((name) => [name, name])], "", change("agent"), {
      id: "filter-agent",
    }),
  };
  for (const [flag, label] of Object.entries(FLAG_NAMES)) {
    controls[flag] = select(
      [
        [ANY, "any"],
        ["only", "only"],
        ["none", "none"],
      ],
      ANY,
      change(flag),
      { id: `filter-${flag}`, "aria-label": label },
    );
  }
  const set = (values) => {
    Object.assign(filters, values);
    text.value = filters.text;
    low.value = filters.low ?? "";
    high.value = filters.high ?? "";
    for (const [name, control] of Object.entries(controls)) control.value = String(filters[name]);
    onChange();
  };
  const reset = el("button", {
    type: "button",
    id: "reset-filters",
    textContent: "reset filters",
    on: { click: () => set(NO_FILTERS) },
  });
  const node = el(
    "div",
    { className: "filters", role: "search" },
    labelled("Text", text, "field grow"),
    report.runs.length > 1 && labelled("Run", controls.run),
    labelled("Mode", controls.mode),
    labelled("Iteration", controls.iteration),
    agents.length > 1 && labelled("Score of", controls.agent),
    el(
      "div",
      { className: "field" },
      el("span", { className: "field-label", textContent: "Score range" }),
      el("span", { className: "range" }, low, "–", high),
    ),
    Object.entries(FLAG_NAMES).map(([flag, label]) => labelled(label, controls[flag])),
    reset,
  );
  return { node, set, reset: () => set(NO_FILTERS) };
}

function scoreInput(label, change) {
  const node = el("input", { type: "number", step: "any", className: "score-input", "aria-label": label });
  const read = () => change(node.value === "" ? null : Number(node.value));
  node.addEventListener("input", debounce(read, 200));
  node.addEventListener("change", read);
  return node;
}
