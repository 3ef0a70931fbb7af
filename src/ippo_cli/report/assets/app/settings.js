// The tab of the configuration: all keys with what differs between runs, the environment, and commands.
import { announce, debounce, el, icon, labelled, replaceChildren, section } from "./dom.js";
import { runLabel, store } from "./store.js";

const MAX_COMMANDS = 4; // runs whose commands are open at first

export function fillSettings(node) {
  const { report } = store;
  node.append(
    commandsSection(),
    settingsSection("Configuration", report.settings, "settings", true),
    settingsSection("Environment", report.environment, "environment", false),
  );
}

function commandsSection() {
  const { runs } = store.report;
  const items = runs.map((run) => [
    el(
      "div",
      { className: "command-folder" },
      el("span", { className: "muted", textContent: run.folder }),
      copyButton(run.folder),
    ),
    run.commands.map((command) =>
      el("div", { className: "command" }, el("code", { textContent: command }), copyButton(command)),
    ),
    run.job_overrides.length > 0 &&
      el("div", { className: "command" }, el("code", { textContent: `this job: ${run.job_overrides.join(" ")}` })),
  ]);
  const list =
    runs.length > MAX_COMMANDS
      ? el("details", {}, el("summary", { textContent: `${runs.length} runs` }), items.flat(2))
      : el("div", {}, items.flat(2));
  return section(runs.length > 1 ? "Commands" : "Command", { id: "commands" }, list);
}

function copyButton(text) {
  return el(
    "button",
    {
      type: "button",
      className: "icon-button",
      "aria-label": "Copy",
      title: "copy",
      on: {
        click: async () => {
          try {
            await navigator.clipboard.writeText(text);
            announce("copied");
          } catch {
            announce("the browser does not allow copying");
          }
        },
      },
    },
    icon("copy"),
  );
}

function settingsSection(title, table, id, withDifferences) {
  const several = store.report.runs.length > 1;
  const body = el("tbody", {});
  const search = el("input", {
    type: "search",
    id: `${id}-search`,
    placeholder: "search keys and values",
    "data-search": "settings",
  });
  let onlyDifferences = withDifferences && several && table.some((row) => row.differs);
  const toggle =
    withDifferences &&
    several &&
    el("button", {
      type: "button",
      className: "toggle",
      id: "only-differences",
      "aria-pressed": String(onlyDifferences),
      textContent: "only differences",
      on: {
        click: () => {
          onlyDifferences = !onlyDifferences;
          toggle.setAttribute("aria-pressed", String(onlyDifferences));
          fill();
        },
      },
    });
  const fill = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = table.filter((row) => {
      const text = `${row.key} ${row.values.map(settingText).join(" ")}`.toLowerCase();
      return (!onlyDifferences || row.differs) && words.every((word) => text.includes(word));
    });
    replaceChildren(
      body,
      rows.map((row) => settingRow(row, several)),
      !rows.length && el("tr", {}, el("td", { className: "muted", textContent: "No key has these words." })),
    );
  };
  search.addEventListener("input", debounce(fill, 120));
  fill();
  const heading =
    several &&
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", { scope: "col", textContent: "key" }),
        store.report.runs.map((_, place) => el("th", { scope: "col", textContent: runLabel(place) })),
      ),
    );
  return section(
    title,
    { id },
    el("div", { className: "toolbar" }, labelled("Search", search, "field grow"), toggle),
    el(
      "div",
      { className: "scroll", tabindex: 0, role: "region", "aria-label": title },
      el("table", { className: "settings" }, heading, body),
    ),
  );
}

function settingRow(row, several) {
  const cells = row.differs
    ? row.values.map((value) => el("td", { textContent: settingText(value) }))
    : [el("td", { colspan: several ? store.report.runs.length : 1, textContent: settingText(row.values[0]) })];
  return el("tr", { className: row.differs ? "differs" : "" }, el("th", { scope: "row", textContent: row.key }), cells);
}

function settingText(value) {
  if (typeof value === "number" && value !== 0 && Math.abs(value) < 1e-3) return value.toExponential();
  return typeof value === "string" ? value : value === undefined ? "" : JSON.stringify(value);
}
