// A scatter plot on a canvas, with a diagonal, means of bins, and axes.
import { el, formatNumber } from "./dom.js";
import { niceTicks } from "./statistics.js";
import { color, withAlpha } from "./theme.js";

const MARGIN = { left: 52, right: 12, top: 10, bottom: 40 };

// Draw `groups` ({label, color, x, y, means: [{value, mean}]}) into `host`.
export function drawScatter(host, { groups, xLabel, yLabel, name, height }) {
  const canvas = el("canvas", { role: "img", "aria-label": name });
  host.replaceChildren(canvas);
  const width = Math.max(host.clientWidth, 200);
  const ratio = devicePixelRatio || 1;
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const frame = scatterFrame(groups, width, height);
  drawAxes(context, frame, width, height, xLabel, yLabel);
  const opacity = Math.max(
    0.08,
    Math.min(
      0.6,
      600 /
        Math.max(
          1,
          groups.reduce((sum, group) => sum + group.x.length, 0),
        ),
    ),
  );
  for (const group of groups) {
    context.fillStyle = withAlpha(group.color, opacity);
    for (let i = 0; i < group.x.length; i++)
      context.fillRect(frame.x(group.x[i]) - 1.5, frame.y(group.y[i]) - 1.5, 3, 3);
  }
  for (const group of groups) drawMeans(context, frame, group);
}

function scatterFrame(groups, width, height) {
  let [low, high] = [Infinity, -Infinity];
  for (const { x, y } of groups) {
    for (const value of x) [low, high] = [Math.min(low, value), Math.max(high, value)];
    for (const value of y) [low, high] = [Math.min(low, value), Math.max(high, value)];
  }
  const pad = (high - low || 1) * 0.04;
  [low, high] = [low - pad, high + pad];
  const scale = (value, start, end) => start + ((value - low) / (high - low)) * (end - start);
  return {
    low,
    high,
    x: (value) => scale(value, MARGIN.left, width - MARGIN.right),
    y: (value) => scale(value, height - MARGIN.bottom, MARGIN.top),
  };
}

function drawAxes(context, { low, high, x, y }, width, height, xLabel, yLabel) {
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = color("muted");
  context.strokeStyle = withAlpha(color("muted"), 0.15);
  for (const tick of niceTicks(low, high, 6)) {
    line(context, x(tick), MARGIN.top, x(tick), height - MARGIN.bottom);
    line(context, MARGIN.left, y(tick), width - MARGIN.right, y(tick));
    context.textAlign = "center";
    context.fillText(formatNumber(tick, 3), x(tick), height - MARGIN.bottom + 15);
    context.textAlign = "right";
    context.fillText(formatNumber(tick, 3), MARGIN.left - 6, y(tick) + 4);
  }
  context.strokeStyle = withAlpha(color("muted"), 0.7);
  context.setLineDash([4, 4]);
  line(context, x(low), y(low), x(high), y(high));
  context.setLineDash([]);
  context.textAlign = "center";
  context.fillText(xLabel, (MARGIN.left + width - MARGIN.right) / 2, height - 6);
  context.save();
  context.translate(12, (MARGIN.top + height - MARGIN.bottom) / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(yLabel, 0, 0);
  context.restore();
}

function line(context, x1, y1, x2, y2) {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}

function drawMeans(context, frame, group) {
  context.strokeStyle = group.color;
  context.fillStyle = group.color;
  context.lineWidth = 2;
  context.beginPath();
  group.means.forEach(({ value, mean }, place) => context[place ? "lineTo" : "moveTo"](frame.x(value), frame.y(mean)));
  context.stroke();
  for (const { value, mean } of group.means) {
    context.beginPath();
    context.arc(frame.x(value), frame.y(mean), 3.5, 0, 2 * Math.PI);
    context.fill();
  }
}
