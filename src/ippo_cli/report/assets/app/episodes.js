// The tab of episodes: filters and histogram, the table, and the viewer beside it.
import { announce, el, formatCount } from "./dom.js";
import { episodeTable } from "./episode_table.js";
import { filterControls, filterRows, filters, scoreOf } from "./filters.js";
import { drawHistogram } from "./histogram.js";
import { emit, listenTo, selectEpisode, store } from "./store.js";
import { episodeViewer } from "./viewer.js";

let table = null;

// Fill the tab; called when it is visible for the first time, because the table needs its size.
export function fillEpisodes(node) {
  if (!store.rows.length) {
    node.append(
      el("p", {
        className: "notice",
        textContent:
          "There are no sampled episodes. A run writes those of its first and last iteration, and of every " +
          "tracker.samples_every iterations in between; tracker.samples sets how many. 0 writes none.",
      }),
    );
    return;
  }
  const host = el("div", { className: "episode-table", "aria-label": "Episodes" });
  const count = el("span", { className: "muted", id: "episode-count" });
  const bins = el("div", { className: "histogram", id: "histogram" });
  const controls = filterControls(refresh);
  const viewer = episodeViewer(moveEpisode);
  node.append(
    el(
      "div",
      { className: "episodes-layout" },
      el(
        "section",
        { className: "card episode-list", "aria-label": "Table of episodes" },
        controls.node,
        bins,
        count,
        host,
      ),
      viewer.node,
    ),
  );
  table = episodeTable(host, (row) => {
    selectEpisode(row);
    const isBelow = viewer.node.offsetTop >= host.offsetTop + host.offsetHeight; // on a narrow screen
    if (isBelow) viewer.node.scrollIntoView();
  });

  function refresh() {
    const rows = filterRows(store.rows);
    drawHistogram(bins, filterRows(store.rows, true).map(scoreOf), filters, (low, high) => controls.set({ low, high }));
    count.textContent =
      rows.length === store.rows.length
        ? formatCount(rows.length, "episode")
        : `${rows.length.toLocaleString("en")} of ${formatCount(store.rows.length, "episode")}`;
    announce(count.textContent);
    table.show(rows);
    if (rows.length && !rows.includes(store.episode)) selectEpisode(bestStart(rows));
  }
  listenTo("episode", (row) => {
    table.mark(row);
    viewer.open(row);
  });
  listenTo("filter", ({ iteration, run }) => {
    controls.reset();
    controls.set({ iteration, ...(run === null ? {} : { run }) });
    emit("status", `samples of iteration ${iteration}`);
  });
  if (store.episode) viewer.open(store.episode);
  refresh();
}

// The newest training episode: what a reader wants to see first.
function bestStart(rows) {
  const training = rows.filter((row) => row.mode === "train");
  const known = training.length ? training : rows;
  return known.reduce((best, row) => (row.iteration > best.iteration ? row : best));
}

// Select the previous or next episode in the order of the table.
export function moveEpisode(step) {
  const order = table?.order() ?? store.rows;
  if (!order.length) return;
  const place = order.findIndex((row) => row.id === store.episode?.id);
  const next = order[Math.max(0, Math.min(order.length - 1, place + step))];
  selectEpisode(store.rows[next.id]);
}
