// The viewer beside the table: an episode, the members of its group, and the same prompt through training.
import { conversation } from "./conversation.js";
import { readEpisode } from "./data.js";
import { el, formatScore, icon, labelled, replaceChildren, setOptions, visibleText } from "./dom.js";
import { flagNames } from "./episode_table.js";
import { runLabel, selectEpisode, store } from "./store.js";
import { onThemeChange } from "./theme.js";
import { fileScale, knownMeasures, scaleLegend, TOKEN_MEASURES } from "./token_scale.js";

const MAX_CARDS = 60; // of a group or of a prompt
const VIEWS = [
  ["episode", "Episode"],
  ["group", "Group"],
  ["prompt", "Same prompt"],
];

// `move(step)` selects the previous or next episode of the table.
export function episodeViewer(move) {
  let row = null;
  let view = "episode";
  let measure = "advantage";
  const head = el("div", { className: "viewer-head" });
  const legend = el("div", { className: "legend-slot" });
  const body = el("div", { className: "viewer-body" });
  const picker = el("select", {
    id: "token-color",
    on: {
      change: () => {
        measure = picker.value;
        draw();
      },
    },
  });
  const colors = labelled("Colour tokens by", picker);
  const views = el("div", { className: "segments", role: "group", "aria-label": "View" });
  const node = el(
    "section",
    { className: "card viewer", id: "viewer", "aria-label": "Episode" },
    head,
    el("div", { className: "viewer-tools" }, views, colors, legend),
    body,
  );
  onThemeChange(() => row && draw());

  function drawHead() {
    const facts = [
      store.report.runs.length > 1 && runLabel(row.run),
      `${modeName(row)}, iteration ${row.iteration}`,
      typeof row.group === "number" && `group ${row.group}`,
    ].filter(Boolean);
    replaceChildren(
      head,
      el(
        "button",
        {
          type: "button",
          className: "icon-button",
          "aria-label": "Previous episode (k)",
          title: "previous (k)",
          on: { click: () => move(-1) },
        },
        icon("previous"),
      ),
      el(
        "button",
        {
          type: "button",
          className: "icon-button",
          "aria-label": "Next episode (j)",
          title: "next (j)",
          on: { click: () => move(1) },
        },
        icon("next"),
      ),
      el("h2", { textContent: `Episode ${row.id}` }),
      el("span", { className: "muted", textContent: facts.join(" · ") }),
      flagNames(row).map((name) => el("span", { className: `flag flag-${name}`, textContent: name })),
      el(
        "span",
        { className: "viewer-score", title: "mean score of the agents" },
        "score ",
        el("strong", { textContent: formatScore(row.score) }),
      ),
    );
  }

  function drawViews() {
    const counts = { episode: null, group: members(row).length, prompt: samePrompt(row).length };
    replaceChildren(
      views,
      VIEWS.map(([name, title]) =>
        el(
          "button",
          {
            type: "button",
            "data-view": name,
            "aria-pressed": String(view === name),
            disabled: counts[name] === 1,
            on: {
              click: () => {
                view = name;
                draw();
              },
            },
          },
          title,
          counts[name] !== null && el("span", { className: "count", textContent: String(counts[name]) }),
        ),
      ),
    );
  }

  async function draw() {
    const wanted = row;
    if (view !== "episode" && (view === "group" ? members(row) : samePrompt(row)).length === 1) view = "episode";
    drawHead();
    drawViews();
    colors.hidden = legend.hidden = view !== "episode";
    const episode = await readEpisode(row, store.report);
    if (wanted !== row) return;
    if (!episode)
      return replaceChildren(
        body,
        el("p", {
          className: "notice",
          textContent:
            "The texts of this sample file are left out of this page; the run's folder has them in samples/.",
        }),
      );
    if (view === "episode") return drawEpisode(episode, wanted);
    const rows = view === "group" ? members(row) : samePrompt(row);
    const cards = await Promise.all(
      rows.slice(0, MAX_CARDS).map(async (other) => sampleCard(other, await readEpisode(other, store.report), row)),
    );
    if (wanted !== row) return;
    const hint =
      view === "group"
        ? "Responses to one prompt in one iteration."
        : "Episodes that begin with the same observation, oldest first.";
    const question = episode.turns[0]?.observation ?? "";
    replaceChildren(
      body,
      el("p", { className: "muted", textContent: hint }),
      el("div", { className: "observation", textContent: visibleText(question) }),
      el("div", { className: view === "group" ? "sample-cards" : "sample-cards timeline" }, cards),
    );
  }

  async function drawEpisode(episode, wanted) {
    const known = knownMeasures(episode.turns);
    const chosen = known.includes(measure) ? measure : "";
    setOptions(picker, [["", "nothing"], ...known.map((name) => [name, TOKEN_MEASURES[name].title])], chosen);
    picker.disabled = known.length === 0;
    const scale = chosen ? await fileScale(row.file, chosen) : null;
    if (wanted !== row) return;
    const missing =
      store.report.files[row.file].mode === "train"
        ? "This file has no token values, or they are left out of this page."
        : "Evaluations have no token values.";
    replaceChildren(
      legend,
      scale ? scaleLegend(chosen, scale) : !known.length && el("span", { className: "muted", textContent: missing }),
    );
    replaceChildren(body, conversation(episode, chosen || null, scale));
  }

  return {
    node,
    open(next) {
      row = next;
      return draw();
    },
  };
}

function modeName(row) {
  return row.mode === "eval" ? `evaluation (${row.sampling})` : "training";
}

// Episodes of the same file, mode and group.
function members(row) {
  return store.rows.filter(
    (other) => other.file === row.file && other.sampling === row.sampling && other.group === row.group,
  );
}

function samePrompt(row) {
  return store.rows
    .filter((other) => other.prompt === row.prompt)
    .sort((one, other) => one.iteration - other.iteration || one.id - other.id);
}

function sampleCard(other, episode, current) {
  return el(
    "article",
    { className: other.id === current.id ? "sample-card current" : "sample-card" },
    el(
      "header",
      {},
      el("button", {
        type: "button",
        className: "link",
        textContent: `episode ${other.id}`,
        on: { click: () => selectEpisode(other) },
      }),
      el("span", {
        className: "muted",
        textContent: `${other.mode === "eval" ? `${modeName(other)}, ` : ""}iteration ${other.iteration}`,
      }),
      el("strong", { textContent: formatScore(other.score) }),
    ),
    episode
      ? episode.turns.map((turn) =>
          el(
            "div",
            {
              className: "card-turn",
              style: { "--agent-color": `var(--series-${(Math.max(0, store.agents.indexOf(turn.agent)) % 8) + 1})` },
            },
            el("span", { className: "turn-agent muted", textContent: turn.agent }),
            el("span", { className: "plain-response", textContent: visibleText(turn.response) }),
          ),
        )
      : el("p", { className: "muted", textContent: "left out" }),
  );
}
