// Colours of token values: what can be shown, its scale over a sample file, and its legend.
import { readJson } from "./data.js";
import { el, formatNumber } from "./dom.js";
import { quantile } from "./statistics.js";
import { store } from "./store.js";
import { color, withAlpha } from "./theme.js";

// By name: title, the value of token i, and whether the scale has two directions from `center`.
export const TOKEN_MEASURES = {
  advantage: { title: "advantage", read: (tokens, i) => tokens.advantage?.[i], center: 0 },
  value: { title: "value", read: (tokens, i) => tokens.value?.[i] },
  ratio: { title: "log-prob ratio (new / old)", read: (tokens, i) => logOf(tokens.ratio?.[i]), center: 0 },
  entropy: { title: "entropy", read: (tokens, i) => tokens.entropy?.[i] },
  kl: {
    title: "KL to the reference",
    read: (tokens, i) => difference(tokens.logprob?.[i], tokens.ref_logprob?.[i]),
    center: 0,
  },
  logprob: { title: "log-probability", read: (tokens, i) => tokens.logprob?.[i] },
  return: { title: "return", read: (tokens, i) => tokens.return?.[i] },
  reward: { title: "reward", read: (tokens, i) => tokens.reward?.[i], center: 0 },
};
const scales = new Map(); // file and measure -> promise of a scale

function logOf(ratio) {
  return ratio > 0 ? Math.log(ratio) : undefined;
}

function difference(one, other) {
  return typeof one === "number" && typeof other === "number" ? one - other : undefined;
}

// Measures that the tokens of an episode have.
export function knownMeasures(turns) {
  return Object.keys(TOKEN_MEASURES).filter((name) =>
    turns.some(
      ({ tokens }) => tokens && tokens.text.some((_, i) => typeof TOKEN_MEASURES[name].read(tokens, i) === "number"),
    ),
  );
}

// The scale of a measure over all tokens of a sample file, so that episodes of an iteration are comparable.
export function fileScale(fileNumber, name) {
  const key = `${fileNumber} ${name}`;
  if (!scales.has(key)) scales.set(key, computeScale(store.report.files[fileNumber].tokens, TOKEN_MEASURES[name]));
  return scales.get(key);
}

async function computeScale(chunk, measure) {
  const values = [];
  for (const turns of await readJson(chunk)) {
    for (const tokens of turns) {
      const count = tokens?.text.length ?? 0;
      for (let i = 0; i < count; i++) {
        const value = measure.read(tokens, i);
        if (typeof value === "number") values.push(value);
      }
    }
  }
  if (measure.center !== undefined) {
    const reach =
      quantile(
        values.map((value) => Math.abs(value - measure.center)),
        0.98,
      ) || 1;
    return { low: measure.center - reach, high: measure.center + reach, isDiverging: true };
  }
  const [low, high] = [quantile(values, 0.02), quantile(values, 0.98)];
  return { low, high: high > low ? high : low + 1, isDiverging: false };
}

// The background of a token.
export function scaleColor(value, scale) {
  if (typeof value !== "number" || Number.isNaN(value)) return "transparent";
  const share = Math.max(0, Math.min(1, (value - scale.low) / (scale.high - scale.low)));
  if (!scale.isDiverging) return withAlpha(color("scale-high"), 0.06 + 0.62 * share);
  const signed = 2 * share - 1;
  return withAlpha(color(signed < 0 ? "scale-negative" : "scale-positive"), 0.7 * Math.abs(signed));
}

export function scaleLegend(name, scale) {
  const stops = Array.from({ length: 9 }, (_, i) => scaleColor(scale.low + (i / 8) * (scale.high - scale.low), scale));
  const labels = scale.isDiverging ? [scale.low, (scale.low + scale.high) / 2, scale.high] : [scale.low, scale.high];
  return el(
    "div",
    {
      className: "scale-legend",
      role: "img",
      "aria-label": `${TOKEN_MEASURES[name].title} from ${formatNumber(scale.low)} to ${formatNumber(scale.high)}`,
    },
    el("span", { className: "scale-bar", style: { background: `linear-gradient(to right, ${stops.join(", ")})` } }),
    el(
      "span",
      { className: "scale-labels" },
      labels.map((value) => el("span", { textContent: formatNumber(value, 3) })),
    ),
  );
}
