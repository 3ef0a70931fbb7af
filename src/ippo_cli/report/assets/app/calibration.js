// The value of each sampled token against its return, by agent.
import { readJson } from "./data.js";
import { el, formatNumber, labelled, replaceChildren, section, select, setOptions } from "./dom.js";
import { scrollTable } from "./parts.js";
import { drawScatter } from "./scatter.js";
import { binnedMeans, calibration } from "./statistics.js";
import { runLabel, store } from "./store.js";
import { onThemeChange, seriesColor } from "./theme.js";

const MAX_TOKENS = 20000; // of the scatter
const BINS = 12;
const NEWEST = "newest";
const ALL = "all";

export function calibrationSection() {
  const host = el("div", { className: "scatter" });
  const numbers = el("div", {});
  const files = store.report.files.map((file, number) => ({ ...file, number })).filter((file) => file.tokens);
  if (!files.length)
    return section(
      "Calibration",
      { id: "calibration" },
      el("p", {
        className: "muted",
        textContent: "No sample file in this page has token values (tracker.sample_tokens).",
      }),
    );
  let chosen = NEWEST;
  const name = (file) => `${store.report.runs.length > 1 ? `${runLabel(file.run)}, ` : ""}iteration ${file.iteration}`;
  const picker = select(
    [],
    NEWEST,
    (value) => {
      chosen = value;
      draw();
    },
    { id: "calibration-file" },
  );
  const newest = store.report.runs.length > 1 ? "newest file of each run" : "newest file";
  setOptions(picker, [[NEWEST, newest], [ALL, "all files"], ...files.map((file) => [file.number, name(file)])], NEWEST);
  async function draw() {
    const pairs = await collectPairs(chooseFiles(files, chosen));
    const groups = store.agents
      .map((agent, place) => ({
        label: agent,
        color: seriesColor(place),
        x: pairs[agent].values,
        y: pairs[agent].returns,
      }))
      .filter((group) => group.x.length);
    for (const group of groups) group.means = binnedMeans(group.x, group.y, BINS);
    if (!groups.length)
      return replaceChildren(
        numbers,
        el("p", { className: "muted", textContent: "These tokens have no values: the run has no critic." }),
      );
    drawScatter(host, {
      groups,
      xLabel: "value",
      yLabel: "return",
      name: `return against value: ${groups.map((group) => `${group.label}, ${group.x.length} tokens`).join("; ")}`,
      height: 340,
    });
    replaceChildren(numbers, calibrationTable(groups));
  }
  onThemeChange(draw);
  new ResizeObserver(draw).observe(host);
  return section(
    "Calibration: return against value",
    { id: "calibration" },
    el("div", { className: "toolbar" }, labelled("Samples", picker)),
    host,
    numbers,
  );
}

// The files of a choice, newest first. A critic changes between iterations: returns and values of several iterations
// together would seem to agree, because both rise.
function chooseFiles(files, chosen) {
  const sorted = [...files].sort((one, other) => other.iteration - one.iteration);
  if (chosen === ALL) return sorted;
  if (chosen !== NEWEST) return sorted.filter((file) => file.number === Number(chosen));
  return sorted.filter((file, place) => sorted.findIndex((other) => other.run === file.run) === place);
}

// Values and returns of the tokens of files, by agent, until there are enough.
async function collectPairs(files) {
  const pairs = Object.fromEntries(store.agents.map((agent) => [agent, { values: [], returns: [] }]));
  let count = 0;
  for (const file of files) {
    const [episodes, tokens] = await Promise.all([readJson(file.text), readJson(file.tokens)]);
    for (const [place, turns] of tokens.entries()) {
      for (const [number, part] of turns.entries()) {
        if (!part?.value || !part.return) continue;
        const pair = pairs[episodes[place].turns[number].agent];
        part.value.forEach((value, i) => {
          if (typeof value !== "number" || typeof part.return[i] !== "number" || part.trained?.[i] === 0 || !pair)
            return;
          pair.values.push(value);
          pair.returns.push(part.return[i]);
          count++;
        });
      }
    }
    if (count >= MAX_TOKENS) break;
  }
  return pairs;
}

function calibrationTable(groups) {
  const rows = groups.map((group) => {
    const { count, correlation, bias, error, explained } = calibration(group.x, group.y);
    const cells = [
      count.toLocaleString("en"),
      ...[explained, correlation, bias, error].map((value) => formatNumber(value, 3)),
    ];
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, el("span", { className: "swatch", style: { background: group.color } }), group.label),
      cells.map((text) => el("td", { className: "number", textContent: text })),
    );
  });
  return scrollTable(
    ["agent", "tokens", "explained variance", "correlation", "bias", "RMSE"],
    rows,
    "Dots are tokens, the line has mean returns of tokens with similar values; on the dashed line values equal returns.",
  );
}
