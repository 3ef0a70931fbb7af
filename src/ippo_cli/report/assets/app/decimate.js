// Fewer points of long curves: what a chart of some width can show, with the extremes of each column of pixels.

const POINTS_PER_COLUMN = 4; // curves with fewer points than this are drawn whole

// The place of the first value in sorted `x` that is not below `value`.
export function lowerBound(x, value) {
  let [low, high] = [0, x.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The place of the value in sorted `x` that is nearest to `value`.
export function nearestPlace(x, value) {
  const place = lowerBound(x, value);
  if (place === 0) return 0;
  return place === x.length || value - x[place - 1] < x[place] - value ? place - 1 : place;
}

// Data for a plot, [x, ...columns], of the points within `range` ([low, high] or null for all) and one beyond each end.
export function decimate(x, columns, range, width) {
  const from = range ? Math.max(0, lowerBound(x, range[0]) - 1) : 0;
  const to = range ? Math.min(x.length, lowerBound(x, range[1]) + 2) : x.length;
  if (to - from <= POINTS_PER_COLUMN * width) return [x, ...columns].map((values) => values.slice(from, to));
  const size = (to - from) / width;
  const edges = Array.from({ length: width + 1 }, (_, column) => from + Math.round(column * size));
  const shownX = new Float64Array(2 * width);
  for (let column = 0; column < width; column++) {
    shownX[2 * column] = x[edges[column]];
    shownX[2 * column + 1] = x[edges[column + 1] - 1];
  }
  return [shownX, ...columns.map((values) => columnExtremes(values, edges))];
}

// The smallest and largest value between neighbouring edges, in the order in which they occur; null without values.
function columnExtremes(values, edges) {
  const found = new Array(2 * (edges.length - 1)).fill(null);
  for (let column = 0; column + 1 < edges.length; column++) {
    let [low, high] = [-1, -1];
    for (let place = edges[column]; place < edges[column + 1]; place++) {
      const value = values[place];
      if (value === null || value === undefined) continue;
      if (low < 0 || value < values[low]) low = place;
      if (high < 0 || value > values[high]) high = place;
    }
    if (low < 0) continue;
    found[2 * column] = values[Math.min(low, high)];
    found[2 * column + 1] = values[Math.max(low, high)];
  }
  return found;
}
