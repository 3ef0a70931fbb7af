// Numbers of curves and samples: smoothing, intervals over seeds, alignment, quantiles and calibration.

// Exponential moving average without bias towards 0 at its start (Kingma and Ba 2015, section 3).
export function smooth(values, weight) {
  if (weight <= 0) return values;
  const found = new Float64Array(values.length);
  let mean = 0;
  let total = 0;
  for (let i = 0; i < values.length; i++) {
    mean = weight * mean + (1 - weight) * values[i];
    total = weight * total + (1 - weight);
    found[i] = mean / total;
  }
  return found;
}

// Mean and limits of the 95 % t-interval; limits are null for one value.
export function meanInterval(values, tQuantiles) {
  const count = values.length;
  const mean = values.reduce((sum, value) => sum + value, 0) / count;
  if (count < 2) return { count, mean, low: null, high: null };
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (count - 1);
  const quantile = tQuantiles[Math.min(count - 1, tQuantiles.length) - 1];
  const half = quantile * Math.sqrt(variance / count);
  return { count, mean, low: mean - half, high: mean + half };
}

// Curves at one common list of iterations: `x` and for each curve its values, null where it has none.
export function alignCurves(curves) {
  if (!curves.length) return { x: [], values: [] };
  if (curves.every((curve) => hasEqualX(curve.x, curves[0].x)))
    return { x: curves[0].x, values: curves.map((curve) => curve.y) };
  const all = new Float64Array(curves.reduce((sum, curve) => sum + curve.x.length, 0));
  let end = 0;
  for (const curve of curves) {
    all.set(curve.x, end);
    end += curve.x.length;
  }
  all.sort();
  const x = all.filter((value, place) => place === 0 || value !== all[place - 1]);
  const values = curves.map((curve) => {
    const column = new Array(x.length).fill(null);
    let place = 0;
    for (let i = 0; i < curve.x.length; i++) {
      while (x[place] < curve.x[i]) place++;
      column[place] = curve.y[i];
    }
    return column;
  });
  return { x, values };
}

function hasEqualX(one, other) {
  if (one === other) return true;
  if (one.length !== other.length) return false;
  for (let i = 0; i < one.length; i++) if (one[i] !== other[i]) return false;
  return true;
}

// Mean curve and limits over seeds, at the iterations that all curves have.
export function meanCurve(curves, tQuantiles) {
  const known = curves.filter((curve) => curve.x.length);
  if (!known.length) return null;
  const { x, values } = alignCurves(known);
  const found = { x: [], y: [], low: [], high: [], count: known.length };
  for (let i = 0; i < x.length; i++) {
    const column = values.map((part) => part[i]);
    if (column.some((value) => value === null || value === undefined)) continue;
    const { mean, low, high } = meanInterval(column, tQuantiles);
    found.x.push(x[i]);
    found.y.push(mean);
    found.low.push(low);
    found.high.push(high);
  }
  return found;
}

// One curve minus another, at the iterations of both.
export function subtractCurves(one, other) {
  const { x, values } = alignCurves([one, other]);
  const known = Array.from(x.keys()).filter((place) =>
    values.every((part) => part[place] !== null && part[place] !== undefined),
  );
  return { x: known.map((place) => x[place]), y: known.map((place) => values[0][place] - values[1][place]) };
}

export function quantile(values, share) {
  const sorted = values.filter((value) => value !== null && Number.isFinite(value)).sort((one, other) => one - other);
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] : NaN;
}

// How well values predict returns: count, correlation, bias, root mean squared error, explained variance.
export function calibration(values, returns) {
  const count = values.length;
  const mean = (numbers) => numbers.reduce((sum, value) => sum + value, 0) / count;
  const [valueMean, returnMean] = [mean(values), mean(returns)];
  let [covariance, valueVariance, returnVariance, squares] = [0, 0, 0, 0];
  for (let i = 0; i < count; i++) {
    covariance += (values[i] - valueMean) * (returns[i] - returnMean);
    valueVariance += (values[i] - valueMean) ** 2;
    returnVariance += (returns[i] - returnMean) ** 2;
    squares += (returns[i] - values[i]) ** 2;
  }
  const bias = valueMean - returnMean;
  return {
    count,
    correlation: covariance / Math.sqrt(valueVariance * returnVariance),
    bias,
    error: Math.sqrt(squares / count),
    explained: returnVariance > 0 ? 1 - (squares - count * bias * bias) / returnVariance : NaN,
  };
}

// Mean return in each of `count` equally large groups of tokens with similar values.
export function binnedMeans(values, returns, count) {
  const order = Array.from(values.keys()).sort((one, other) => values[one] - values[other]);
  const size = Math.max(1, Math.ceil(order.length / count));
  const found = [];
  for (let start = 0; start < order.length; start += size) {
    const part = order.slice(start, start + size);
    found.push({
      value: part.reduce((sum, place) => sum + values[place], 0) / part.length,
      mean: part.reduce((sum, place) => sum + returns[place], 0) / part.length,
    });
  }
  return found;
}

// Round numbers for the ticks of an axis.
export function niceTicks(low, high, count) {
  if (!(high > low)) return [low];
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step)
    ticks.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  return ticks;
}
