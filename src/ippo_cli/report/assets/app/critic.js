// The tab of critics: values along an episode, explained variance by turn, and calibration over sampled tokens.
import { lineChart } from "./chart.js";
import { readEpisode, readJson } from "./data.js";
import { el, formatNumber, icon, labelled, replaceChildren, section, select, setOptions, visibleText } from "./dom.js";
import { moveEpisode } from "./episodes.js";
import { scrollTable } from "./parts.js";
import { drawScatter } from "./scatter.js";
import { listenTo, runLabel, selectEpisode, store } from "./store.js";
import { binnedMeans, calibration } from "./statistics.js";
import { color, onThemeChange, seriesColor } from "./theme.js";

const MAX_TOKENS = 20000; // of the scatter
const BINS = 12;
const CHART_HEIGHT = 260;
const NEWEST = "newest";

export function fillCritic(node, metrics) {
  node.append(valueSection(), el("div", { className: "two-columns" }, calibrationSection(), turnSection(metrics)));
}

// Values and returns along the tokens of the shown episode, for one agent.
function valueSection() {
  const host = el("div", {});
  const note = el("p", { className: "muted" });
  let agent = store.agents[0];
  let chart = null;
  const picker = select(store.agents.map((name) => [name, name]), agent, (value) => {
    agent = value;
    draw();
  }, { id: "critic-agent" });
  async function draw() {
    const row = store.episode ?? newestWithTokens();
    if (!row) return replaceChildren(note, "No sampled episode has token values.");
    if (row !== store.episode) return selectEpisode(row);
    const episode = await readEpisode(row, store.report);
    const tokens = episode ? agentTokens(episode, agent) : [];
    note.textContent = `Episode ${row.id}, iteration ${row.iteration}: ${tokens.length ? `${tokens.length} tokens of ${agent}` : `no token values of ${agent}; choose an episode of training`}`;
    host.hidden = !tokens.length;
    if (!tokens.length) return;
    const options = valueOptions(tokens, agent);
    if (chart) chart.update(options);
    else chart = lineChart(host, options);
  }
  listenTo("episode", draw);
  onThemeChange(() => chart && draw());
  requestAnimationFrame(draw);
  const step = (label, name, size) => el("button", { type: "button", className: "icon-button", "aria-label": label, on: { click: () => moveEpisode(size) } }, icon(name));
  return section("Value and return along the episode", { id: "critic-values" }, el("div", { className: "toolbar" }, step("Previous episode", "previous", -1), step("Next episode", "next", 1), labelled("Agent", picker), note), host);
}

function newestWithTokens() {
  const known = store.rows.filter((row) => store.report.files[row.file].tokens);
  return known.length ? known.reduce((best, row) => (row.iteration > best.iteration ? row : best)) : null;
}

// All tokens of an agent with their step, in the order of turns.
function agentTokens(episode, agent) {
  return episode.turns
    .filter((turn) => turn.agent === agent && turn.tokens)
    .flatMap(({ step, tokens }) => tokens.text.map((text, i) => ({ text, step, isFirst: i === 0, value: tokens.value?.[i], return: tokens.return?.[i], advantage: tokens.advantage?.[i], reward: tokens.reward?.[i] })));
}

function valueOptions(tokens, agent) {
  const lines = [["return", "series-2"], ["value", "series-1"], ["advantage", "series-4"], ["reward", "series-3"]];
  const known = lines.filter(([name]) => tokens.some((token) => typeof token[name] === "number"));
  return {
    x: tokens.map((_, place) => place + 1),
    series: known.map(([name, property]) => ({ label: name, color: color(property), values: tokens.map((token) => token[name] ?? null), width: name === "value" || name === "return" ? 2 : 1, dash: name === "advantage" || name === "reward" ? [3, 3] : undefined })),
    markers: tokens.flatMap((token, place) => (token.isFirst && place > 0 ? [{ x: place + 0.5, color: color("muted"), isQuiet: true, label: `step ${token.step}` }] : [])),
    title: (x, place) => `token ${x} (step ${tokens[place].step}): ${visibleText(tokens[place].text)}`,
    name: `value and return of ${agent} along the tokens`,
    height: CHART_HEIGHT,
    hasLegend: true,
    sharesZoom: false,
  };
}

// The value of each sampled token against its return.
function calibrationSection() {
  const host = el("div", { className: "scatter" });
  const numbers = el("div", {});
  const files = store.report.files.map((file, number) => ({ ...file, number })).filter((file) => file.tokens);
  if (!files.length) return section("Calibration", { id: "calibration" }, el("p", { className: "muted", textContent: "No sample file in this page has token values (tracker.sample_tokens)." }));
  let chosen = NEWEST;
  const name = (file) => `${store.report.runs.length > 1 ? `${runLabel(file.run)}, ` : ""}iteration ${file.iteration}`;
  const picker = select([], NEWEST, (value) => {
    chosen = value;
    draw();
  }, { id: "calibration-file" });
  setOptions(picker, [[NEWEST, "newest files"], ...files.map((file) => [file.number, name(file)])], NEWEST);
  async function draw() {
    const wanted = chosen === NEWEST ? [...files].sort((one, other) => other.iteration - one.iteration) : files.filter((file) => file.number === Number(chosen));
    const pairs = await collectPairs(wanted);
    const groups = store.agents.map((agent, place) => ({ label: agent, color: seriesColor(place), x: pairs[agent].values, y: pairs[agent].returns })).filter((group) => group.x.length);
    for (const group of groups) group.means = binnedMeans(group.x, group.y, BINS);
    if (!groups.length) return replaceChildren(numbers, el("p", { className: "muted", textContent: "These tokens have no values: the run has no critic." }));
    drawScatter(host, { groups, xLabel: "value", yLabel: "return", name: `return against value: ${groups.map((group) => `${group.label}, ${group.x.length} tokens`).join("; ")}`, height: 340 });
    replaceChildren(numbers, calibrationTable(groups));
  }
  onThemeChange(draw);
  new ResizeObserver(draw).observe(host);
  return section("Calibration: return against value", { id: "calibration" }, el("div", { className: "toolbar" }, labelled("Samples", picker)), host, numbers);
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
          if (typeof value !== "number" || typeof part.return[i] !== "number" || part.trained?.[i] === 0 || !pair) return;
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
    const cells = [count.toLocaleString("en"), ...[explained, correlation, bias, error].map((value) => formatNumber(value, 3))];
    return el("tr", {}, el("th", { scope: "row" }, el("span", { className: "swatch", style: { background: group.color } }), group.label), cells.map((text) => el("td", { className: "number", textContent: text })));
  });
  return scrollTable(["agent", "tokens", "explained variance", "correlation", "bias", "RMSE"], rows, "Dots are tokens, the line has mean returns of tokens with similar values; on the dashed line values equal returns.");
}

// Explained variance of the values of each turn, from the metrics of one run and agent.
function turnSection(metrics) {
  const host = el("div", {});
  const known = store.report.runs.flatMap((_, run) => store.agents.map((agent) => ({ run, agent, curves: turnCurves(metrics[run], agent) }))).filter(({ curves }) => curves.length);
  if (!known.length) return section("Explained variance", { id: "turns" }, el("p", { className: "muted", textContent: "No metrics of a critic." }));
  let chart = null;
  let place = 0;
  const draw = () => {
    const { agent, curves } = known[place];
    const options = turnOptions(agent, curves);
    if (chart) chart.update(options);
    else chart = lineChart(host, options);
  };
  const label = ({ run, agent }) => (store.report.runs.length > 1 ? `${agent}, ${runLabel(run)}` : agent);
  const picker = select(known.map((entry, number) => [number, label(entry)]), 0, (value) => {
    place = Number(value);
    draw();
  }, { id: "turn-agent" });
  onThemeChange(() => chart && draw());
  requestAnimationFrame(draw);
  return section("Explained variance by turn", { id: "turns" }, el("div", { className: "toolbar" }, labelled("Agent", picker)), host, el("p", { className: "muted note", textContent: "1 − Var(return − value) / Var(return) of the values before the update: 1 is perfect, 0 is no better than the mean." }));
}

function turnCurves(metrics, agent) {
  const whole = metrics.get(`${agent}/value/explained_variance`);
  const prefix = `${agent}/value/explained_variance/turn/`;
  const turns = [...metrics.keys()].filter((name) => name.startsWith(prefix)).map((name) => [Number(name.slice(prefix.length)), metrics.get(name)]).sort((one, other) => one[0] - other[0]);
  return [...(whole ? [["all turns", whole]] : []), ...turns.map(([turn, curve]) => [`turn ${turn}`, curve])];
}

function turnOptions(agent, curves) {
  const x = [...new Set(curves.flatMap(([, curve]) => Array.from(curve.x)))].sort((one, other) => one - other);
  const series = curves.map(([label, curve], place) => {
    const values = new Map(Array.from(curve.x, (at, i) => [at, curve.y[i]]));
    return { label, color: label === "all turns" ? color("ink") : seriesColor(place - (curves[0][0] === "all turns" ? 1 : 0)), values: x.map((at) => values.get(at) ?? null), width: label === "all turns" ? 2 : 1.4 };
  });
  return { x, series, name: `explained variance of ${agent} by turn`, height: CHART_HEIGHT, hasLegend: true, sharesZoom: true };
}
