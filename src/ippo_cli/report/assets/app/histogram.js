// A histogram of scores with one button per bin; a bin filters the table.
import { el, formatCount, formatNumber, formatScore, replaceChildren } from "./dom.js";

const MAX_BINS = 24;

// `onRange(low, high)` is called with the limits of a bin, or nulls if the bin was chosen already.
export function drawHistogram(node, scores, range, onRange) {
  const known = scores.filter((score) => score !== null && Number.isFinite(score));
  if (!known.length) return replaceChildren(node, el("p", { className: "muted", textContent: "No scores." }));
  const bins = makeBins(known);
  const highest = Math.max(...bins.map((bin) => bin.count));
  const bars = bins.map((bin) => {
    const isChosen = range.low === bin.low && range.high === bin.high;
    const isInside = (range.low === null || bin.high >= range.low) && (range.high === null || bin.low <= range.high);
    const name = bin.low === bin.high ? formatNumber(bin.low) : `${formatNumber(bin.low)} to ${formatNumber(bin.high)}`;
    return el(
      "button",
      {
        type: "button",
        className: isInside ? "bin" : "bin outside",
        "aria-pressed": String(isChosen),
        "aria-label": `score ${name}: ${formatCount(bin.count, "episode")}`,
        title: `${name}: ${bin.count}`,
        on: { click: () => (isChosen ? onRange(null, null) : onRange(bin.low, bin.high)) },
      },
      el("span", { style: { height: `${bin.count ? Math.max(4, (100 * bin.count) / highest) : 0}%` } }),
    );
  });
  replaceChildren(
    node,
    el("div", { className: "bins", role: "group", "aria-label": "Histogram of scores" }, bars),
    el(
      "div",
      { className: "bin-axis muted" },
      el("span", { textContent: formatScore(bins[0].low) }),
      el("span", { textContent: `${known.length.toLocaleString("en")} scores` }),
      el("span", { textContent: formatScore(bins.at(-1).high) }),
    ),
  );
}

// One bin per value if there are few, else bins of equal width.
function makeBins(scores) {
  const values = [...new Set(scores)].sort((one, other) => one - other);
  if (values.length <= MAX_BINS / 2)
    return values.map((value) => ({
      low: value,
      high: value,
      count: scores.filter((score) => score === value).length,
    }));
  const [low, high] = [values[0], values.at(-1)];
  const width = (high - low) / MAX_BINS;
  const bins = Array.from({ length: MAX_BINS }, (_, place) => ({
    low: low + place * width,
    high: place === MAX_BINS - 1 ? high : low + (place + 1) * width,
    count: 0,
  }));
  for (const score of scores) bins[Math.min(MAX_BINS - 1, Math.floor((score - low) / width))].count++;
  return bins;
}
