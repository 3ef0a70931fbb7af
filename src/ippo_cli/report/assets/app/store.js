// What the parts of the page share: the index of the report, the rows of episodes, and what is selected.
import { episodeRows, readJson } from "./data.js";

export const store = { report: null, rows: [], episode: null };
const handlers = new Map();

export function listenTo(event, handler) {
  if (!handlers.has(event)) handlers.set(event, []);
  handlers.get(event).push(handler);
}

// Events: `tab` (a name), `episode` (a row), `filter` (values of filters to set).
export function emit(event, value) {
  for (const handler of handlers.get(event) ?? []) handler(value);
}

export async function loadReport() {
  const [report, columns] = await Promise.all([readJson("index"), readJson("episodes")]);
  store.report = report;
  store.rows = episodeRows(columns, report);
  store.agents = [...new Set([...report.runs.flatMap((run) => run.agents), ...Object.keys(columns.agents)])];
  store.configurationOf = report.runs.map((_, place) =>
    report.configurations.findIndex((group) => group.runs.includes(place)),
  );
  return report;
}

export function selectEpisode(row) {
  if (!row || row === store.episode) return;
  store.episode = row;
  emit("episode", row);
}

// Show the samples of the sampled iteration that is nearest to `iteration`, of one run or of all.
export function showSamples(iteration, run = null) {
  const files = store.report.files.filter((file) => run === null || file.run === run);
  if (!files.length) return;
  const nearest = files.reduce((best, file) => (distance(file, iteration) < distance(best, iteration) ? file : best));
  emit("tab", "episodes"); // before the filter, because the tab listens once it is open
  emit("filter", { iteration: nearest.iteration, run });
}

function distance(file, iteration) {
  return Math.abs(file.iteration - iteration) + (file.mode === "train" ? 0 : 0.5);
}

export function runLabel(place) {
  const { report } = store;
  return report.runs.length === 1 ? report.runs[0].name : report.runs[place].name;
}
