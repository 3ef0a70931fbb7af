// The tokens of a response, coloured by a measure, with all numbers in a tooltip.
import { el, formatNumber, visibleText } from "./dom.js";
import { scaleColor, TOKEN_MEASURES } from "./token_scale.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const NUMBERS = [
  ["logprob", "log-probability"],
  ["behavior_logprob", "log-probability when sampled"],
  ["ref_logprob", "log-probability of the reference"],
  ["entropy", "entropy"],
  ["ratio", "ratio new / old"],
  ["value", "value"],
  ["return", "return"],
  ["advantage", "advantage"],
  ["reward", "reward"],
];
const shownTokens = new WeakMap(); // node -> tokens

// Nodes of a response: one span per token, then text beyond the first tokens. Without token values, the text.
export function responseNodes(turn, measure, scale) {
  const { tokens, response } = turn;
  if (!tokens) return [el("span", { className: "plain-response", textContent: visibleText(response) })];
  const spans = tokens.text.map((text, i) => {
    const isMasked = tokens.trained?.[i] === 0;
    const background = measure ? scaleColor(TOKEN_MEASURES[measure].read(tokens, i), scale) : "transparent";
    return el("span", {
      className: isMasked ? "token masked" : "token",
      "data-i": i,
      style: { background },
      textContent: visibleToken(text),
    });
  });
  const box = el(
    "span",
    {
      className: "tokens",
      tabindex: 0,
      role: "group",
      "aria-label": `${tokens.text.length} tokens; left and right keys show their numbers`,
    },
    spans,
  );
  shownTokens.set(box, tokens);
  box.addEventListener(
    "mouseover",
    (event) => event.target.dataset.i && showToken(box, Number(event.target.dataset.i)),
  );
  box.addEventListener("click", (event) => event.target.dataset.i && showToken(box, Number(event.target.dataset.i)));
  box.addEventListener("mouseleave", hideTooltip);
  box.addEventListener("blur", () => {
    hideTooltip();
    activate(box, -1);
  });
  box.addEventListener("keydown", (event) => moveToken(box, event));
  return [box, remainder(turn)];
}

// Text of the response beyond the tokens that have values; all of it if the tokens spell it in another way.
function remainder({ tokens, response }) {
  const known = tokens.text.join("");
  if (typeof response !== "string" || response.length <= known.length) return null;
  const rest = response.startsWith(known) ? response.slice(known.length) : `\n… of: ${response}`;
  return el("span", { className: "remainder", title: "no token values", textContent: visibleText(rest) });
}

function visibleToken(text) {
  return visibleText(text).replaceAll("\n", "↵\n") || "∅";
}

function moveToken(box, event) {
  const steps = { ArrowLeft: -1, ArrowRight: 1 };
  if (event.key === "Escape") return hideTooltip();
  if (!(event.key in steps)) return;
  event.preventDefault();
  event.stopPropagation();
  const count = box.children.length;
  const now = Number(box.querySelector(".active")?.dataset.i ?? -1);
  const next = now < 0 && steps[event.key] < 0 ? count - 1 : now + steps[event.key];
  showToken(box, Math.max(0, Math.min(count - 1, next)));
}

function activate(box, i) {
  box.querySelector(".active")?.classList.remove("active");
  box.children[i]?.classList.add("active");
}

function showToken(box, i) {
  const tokens = shownTokens.get(box);
  activate(box, i);
  const rows = NUMBERS.filter(([name]) => typeof tokens[name]?.[i] === "number").map(([name, label]) => [
    label,
    formatNumber(tokens[name][i]),
  ]);
  const kl = TOKEN_MEASURES.kl.read(tokens, i);
  if (typeof kl === "number") rows.push(["KL to the reference (k1)", formatNumber(kl)]);
  const { left, bottom } = box.children[i].getBoundingClientRect();
  const note = tokens.trained?.[i] === 0 ? "not trained on" : "";
  showTooltip(left - 10, bottom - 8, `token ${i + 1}: ${visibleToken(tokens.text[i])}`, rows, note);
}
