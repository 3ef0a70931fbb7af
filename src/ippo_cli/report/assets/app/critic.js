// The tab of critics: values along an episode, calibration over sampled tokens, and explained variance by turn.
import { calibrationSection } from "./calibration.js";
import { lineChart } from "./chart.js";
import { readEpisode } from "./data.js";
import { el, formatCount, icon, labelled, replaceChildren, section, select, visibleText } from "./dom.js";
import { moveEpisode } from "./episodes.js";
import { listenTo, selectEpisode, store } from "./store.js";
import { color, onThemeChange } from "./theme.js";
import { turnSection } from "./turn_variance.js";

const VALUE_HEIGHT = 260;

export function fillCritic(node, metrics) {
  node.append(valueSection(), el("div", { className: "two-columns" }, calibrationSection(), turnSection(metrics)));
}

// Values and returns along the tokens of the shown episode, for one agent.
function valueSection() {
  const host = el("div", {});
  const note = el("p", { className: "muted" });
  let agent = store.agents[0];
  let chart = null;
  const picker = select(
    store.agents.map((name) => [name, name]),
    agent,
    (value) => {
      agent = value;
      draw();
    },
    { id: "critic-agent" },
  );
  async function draw() {
    const row = store.episode ?? newestWithTokens();
    if (!row) return replaceChildren(note, missingTokens());
    if (row !== store.episode) return selectEpisode(row);
    const episode = await readEpisode(row, store.report);
    const tokens = episode ? agentTokens(episode, agent) : [];
    const found = tokens.length ? formatCount(tokens.length, "token") + ` of ${agent}` : missingTokens(row, agent);
    note.textContent = `Episode ${row.id}, iteration ${row.iteration}: ${found}`;
    host.hidden = !tokens.length;
    if (!tokens.length) return;
    const options = valueOptions(tokens, agent);
    if (chart) chart.update(options);
    else chart = lineChart(host, options);
  }
  listenTo("episode", draw);
  onThemeChange(() => chart && draw());
  requestAnimationFrame(draw);
  const step = (label, name, size) =>
    el(
      "button",
      { type: "button", className: "icon-button", "aria-label": label, on: { click: () => moveEpisode(size) } },
      icon(name),
    );
  return section(
    "Value and return along the episode",
    { id: "critic-values" },
    el(
      "div",
      { className: "toolbar" },
      step("Previous episode", "previous", -1),
      step("Next episode", "next", 1),
      labelled("Agent", picker),
      note,
    ),
    host,
  );
}

// Why there are no token values: of an episode, or of all.
function missingTokens(row = null, agent = "") {
  const hasOthers = newestWithTokens() !== null;
  if (row && hasOthers) return `no token values of ${agent}; choose an episode of training`;
  const hasTraining = store.rows.some(({ mode }) => mode === "train");
  const reason = hasTraining
    ? "tracker.sample_tokens=0 writes no token values, and large pages leave them out"
    : "only samples of training have them, and tracker.samples_every wrote none";
  return `no sampled episode has token values: ${reason}`;
}

function newestWithTokens() {
  const known = store.rows.filter((row) => store.report.files[row.file].tokens);
  return known.length ? known.reduce((best, row) => (row.iteration > best.iteration ? row : best)) : null;
}

// All tokens of an agent with their step, in the order of turns.
function agentTokens(episode, agent) {
  return episode.turns
    .filter((turn) => turn.agent === agent && turn.tokens)
    .flatMap(({ step, tokens }) =>
      tokens.text.map((text, i) => ({
        text,
        step,
        isFirst: i === 0,
        value: tokens.value?.[i],
        return: tokens.return?.[i],
        advantage: tokens.advantage?.[i],
        reward: tokens.reward?.[i],
      })),
    );
}

function valueOptions(tokens, agent) {
  const lines = [
    ["return", "series-2"],
    ["value", "series-1"],
    ["advantage", "series-4"],
    ["reward", "series-3"],
  ];
  const known = lines.filter(([name]) => tokens.some((token) => typeof token[name] === "number"));
  return {
    x: tokens.map((_, place) => place + 1),
    series: known.map(([name, property]) => ({
      label: name,
      color: color(property),
      values: tokens.map((token) => token[name] ?? null),
      width: name === "value" || name === "return" ? 2 : 1,
      dash: name === "advantage" || name === "reward" ? [3, 3] : undefined,
    })),
    markers: tokens.flatMap((token, place) =>
      token.isFirst && place > 0
        ? [{ x: place + 0.5, color: color("muted"), isQuiet: true, label: `step ${token.step}` }]
        : [],
    ),
    title: (x, place) => `token ${x} (step ${tokens[place].step}): ${visibleText(tokens[place].text)}`,
    name: `value and return of ${agent} along the tokens`,
    height: VALUE_HEIGHT,
    hasLegend: true,
    sharesZoom: false,
  };
}
