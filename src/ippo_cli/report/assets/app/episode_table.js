// The table of episodes: Tabulator renders the visible rows alone.
import { formatScore } from "./dom.js";
import { runLabel, store } from "./store.js";

const MODE_HINT = "train: sampled for training; sampled and greedy: of an evaluation";

// Build the table in `box`; returns {show(rows), mark(row), order()}. `onOpen(row)` is called for a click or Enter.
export function episodeTable(box, onOpen) {
  const host = document.createElement("div"); // Tabulator sets the height of its element
  box.append(host);
  let current = null;
  let isBuilt = false;
  let pending = null;
  let components = new Map(); // id -> row of the table
  const table = new Tabulator(host, {
    data: [],
    index: "id",
    height: "100%",
    layout: "fitColumns",
    responsiveLayout: "hide", // a narrow page leaves out the columns with the highest `responsive`
    placeholder: "No episode passes the filters.",
    initialSort: [{ column: "iteration", dir: "desc" }],
    columns: columns(),
    columnDefaults: { headerSortTristate: true, resizable: "header", titleFormatter: plainTitle },
    rowFormatter: (row) => row.getElement().classList.toggle("current", row.getData().id === current),
  });
  table.on("tableBuilt", () => {
    isBuilt = true;
    if (pending) table.setData(pending);
  });
  table.on("dataProcessed", () => {
    components = new Map(table.getRows().map((row) => [row.getData().id, row]));
    showCurrent();
  });
  table.on("rowClick", (_, row) => onOpen(row.getData()));
  function showCurrent() {
    components.get(current)?.reformat();
    if (components.has(current)) table.scrollToRow(components.get(current), "nearest", false).catch(() => {});
  }
  return {
    show(rows) {
      pending = rows;
      return isBuilt ? table.replaceData(rows) : null;
    },
    // Highlight a row and bring it into view.
    mark(row) {
      const before = components.get(current);
      current = row.id;
      before?.reformat();
      showCurrent();
    },
    // Rows in the order of the table.
    order() {
      return isBuilt ? table.getData("active") : (pending ?? []);
    },
  };
}

function columns() {
  const several = store.report.runs.length > 1;
  const agents = store.rows.some(hasUnequalScores) ? store.agents : [];
  const hasFlags = store.rows.some((row) => row.truncated || row.failed || row.zero_variance);
  const number = {
    hozAlign: "right",
    headerHozAlign: "right",
    sorter: "number",
    sorterParams: { alignEmptyValues: "bottom" },
  };
  return [
    { title: "#", field: "id", responsive: 0, minWidth: 52, ...number },
    several && { title: "run", field: "run", responsive: 1, minWidth: 90, formatter: (cell) => plain(runLabel(cell.getValue())) },
    { title: "iter.", field: "iteration", responsive: 0, minWidth: 64, ...number, titleFormatterParams: { hint: "iteration" } },
    { title: "mode", field: "sampling", responsive: 1, minWidth: 72, titleFormatterParams: { hint: MODE_HINT } },
    {
      title: "score",
      field: "score",
      responsive: 0,
      minWidth: 64,
      ...number,
      formatter: (cell) => plain(formatScore(cell.getValue())),
    },
    ...agents.map((name, place) => ({
      title: name,
      field: `agent${place}`,
      responsive: 3,
      minWidth: 64,
      ...number,
      mutator: (_, row) => row.agents[name] ?? null,
      formatter: (cell) => plain(formatScore(cell.getValue())),
    })),
    {
      title: "turns",
      field: "turns",
      responsive: 5,
      minWidth: 58,
      ...number,
      titleFormatterParams: { hint: "responses of all agents together" },
    },
    {
      title: "length",
      field: "chars",
      responsive: 6,
      minWidth: 64,
      ...number,
      titleFormatterParams: { hint: "characters of all responses" },
    },
    {
      title: "group",
      field: "group",
      responsive: 4,
      minWidth: 64,
      titleFormatterParams: { hint: "number of the prompt within its iteration and mode" },
      hozAlign: "right",
      headerHozAlign: "right",
      sorter: "alphanum",
      formatter: (cell) => plain(typeof cell.getValue() === "number" ? String(cell.getValue()) : "–"),
    },
    hasFlags && {
      title: "flags",
      field: "flags",
      responsive: 2,
      minWidth: 92,
      mutator: (_, row) => flagNames(row).join(" "),
      formatter: (cell) => flagBadges(cell.getData()),
    },
  ].filter(Boolean);
}

function hasUnequalScores(row) {
  return new Set(Object.values(row.agents)).size > 1;
}

export function flagNames(row) {
  return [row.truncated && "truncated", row.failed && "failed", row.zero_variance && "equal"].filter(Boolean);
}

function flagBadges(row) {
  const box = document.createElement("span");
  for (const name of flagNames(row)) {
    const badge = document.createElement("span");
    badge.className = `flag flag-${name}`;
    badge.textContent = name;
    box.append(badge);
  }
  return box;
}

function plain(text) {
  return document.createTextNode(text);
}

// Tabulator would read titles as HTML. `hint`: shown when the pointer rests on the title.
function plainTitle(cell, { hint = "" }) {
  const title = document.createElement("span");
  title.textContent = cell.getValue();
  title.title = hint;
  return title;
}
