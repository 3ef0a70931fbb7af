// One episode: a column per agent and a row per step, with observations, responses, scores and the end.
import { el, formatNumber, formatScore, visibleText } from "./dom.js";
import { agentName } from "./parts.js";
import { store } from "./store.js";
import { responseNodes } from "./tokens.js";

const LONG_TEXT = 700; // characters of an observation that are shown at first

// `measure` and `scale` colour the tokens; null shows plain tokens.
export function conversation(episode, measure, scale) {
  const agents = agentOrder(episode);
  const steps = [...new Set(episode.turns.map((turn) => turn.step))].sort((one, other) => one - other);
  const grid = el("div", { className: "conversation", style: { "--agents": agents.length } });
  for (const [place, name] of agents.entries()) {
    grid.append(
      el(
        "div",
        { className: "agent-head", style: { gridColumn: place + 1, gridRow: 1 } },
        agentName(name, agentPlace(name)),
        el("span", { className: "muted", textContent: `score ${formatScore(episode.agents[name]?.score)}` }),
        episode.partners?.includes(name) && el("span", { className: "flag", textContent: "opponent snapshot" }),
      ),
    );
  }
  for (const [row, step] of steps.entries()) {
    for (const [place, name] of agents.entries()) {
      const turns = episode.turns.filter((turn) => turn.step === step && turn.agent === name);
      if (turns.length)
        grid.append(
          el(
            "div",
            { className: "step", style: { gridColumn: place + 1, gridRow: row + 2 } },
            turns.map((turn) => turnNode(turn, measure, scale)),
          ),
        );
    }
  }
  return el("div", { className: "episode-body" }, grid, outcome(episode));
}

function agentOrder(episode) {
  const known = new Set([...Object.keys(episode.agents ?? {}), ...episode.turns.map((turn) => turn.agent)]);
  return [
    ...store.agents.filter((name) => known.has(name)),
    ...[...known].filter((name) => !store.agents.includes(name)),
  ];
}

export function agentPlace(name) {
  return Math.max(0, store.agents.indexOf(name));
}

function turnNode(turn, measure, scale) {
  return el(
    "article",
    {
      className: "turn",
      "aria-label": `${turn.agent}, step ${turn.step}`,
      style: { "--agent-color": `var(--series-${(agentPlace(turn.agent) % 8) + 1})` },
    },
    el(
      "div",
      { className: "turn-head muted" },
      el("span", { className: "turn-agent", textContent: turn.agent }),
      el("span", { textContent: `step ${turn.step}` }),
      turn.score !== null &&
        turn.score !== undefined &&
        el("span", { textContent: `score ${formatScore(turn.score)}` }),
      turn.cut && el("span", { className: "flag flag-truncated", textContent: "truncated" }),
    ),
    el("div", { className: "observation" }, longText(turn.observation)),
    el("div", { className: "response" }, responseNodes(turn, measure, scale)),
  );
}

// A text whose middle is hidden until a button is used.
function longText(value) {
  const text = visibleText(typeof value === "string" ? value : JSON.stringify(value));
  if (text.length <= LONG_TEXT) return text;
  const [start, end] = [text.slice(0, LONG_TEXT / 2), text.slice(-LONG_TEXT / 2)];
  const box = el("span", {}, start);
  const more = el("button", {
    type: "button",
    className: "link",
    textContent: ` … ${text.length - LONG_TEXT} more characters … `,
    on: { click: () => box.replaceChildren(text) },
  });
  box.append(more, end);
  return box;
}

// How the episode ended, the parts of the score, and credit.
function outcome(episode) {
  const end = episode.failure
    ? "failed"
    : episode.truncation
      ? `truncated (${episode.truncation})`
      : episode.terminated
        ? "terminated"
        : "not over";
  const parts = [
    fact("End", end),
    ...Object.entries(episode.parts ?? {}).map(([name, value]) => fact(name, formatNumber(value), "part of the score")),
    ...Object.entries(episode.agents ?? {}).flatMap(([agent, row]) =>
      Object.entries(row.parts ?? {}).map(([name, value]) =>
        fact(`${agent} ${name}`, formatNumber(value), "part of the score"),
      ),
    ),
    ...Object.entries(episode.credit ?? {}).flatMap(([agent, methods]) =>
      Object.entries(methods ?? {}).map(([method, value]) =>
        fact(`credit of ${agent} (${method})`, formatNumber(value)),
      ),
    ),
  ];
  const last = Object.entries(episode.last_observations ?? {});
  return el(
    "div",
    { className: "outcome" },
    el("dl", { className: "facts" }, parts),
    episode.failure && el("p", { className: "failure", textContent: visibleText(episode.failure) }),
    last.length > 0 &&
      el(
        "details",
        {},
        el("summary", { textContent: "Last observations" }),
        last.map(([agent, text]) =>
          el("div", { className: "observation" }, el("strong", { textContent: `${agent}: ` }), longText(text)),
        ),
      ),
  );
}

function fact(name, value, title = null) {
  return el(
    "div",
    { className: "fact", title },
    el("dt", { textContent: visibleText(name) }),
    el("dd", { textContent: visibleText(value) }),
  );
}
