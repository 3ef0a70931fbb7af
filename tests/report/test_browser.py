"""The page in Chromium: every control, keys, hostile texts, sizes, and no error in the console."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic import AGENTS, HOSTILE, SETTINGS, write_run

from ippo_cli.report.page import build_page
from ippo_cli.report.write import collect_runs, write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `browser`)")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no chromium or google-chrome on the path", allow_module_level=True)

WIDE, NARROW = {"width": 1400, "height": 900}, {"width": 390, "height": 844}
PROBLEMS, LOCAL = ("error", "warning"), ("file:", "data:", "blob:")
RECORD_TICKS = """() => {
  window.ticks = [];
  const draw = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
    window.ticks.push(text);
    return draw.call(this, text, ...place);
  };
}"""
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    """Open a page; afterwards the console must be empty, and nothing requested."""
    contexts, problems = [], []

    def opened(file: Path, tab: str = "overview", *, viewport: Any = WIDE, scheme: str = "light", at: str = "") -> Any:
        context = browser.new_context(viewport=viewport, color_scheme=scheme)
        context.set_default_timeout(15_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text) if message.type in PROBLEMS else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(LOCAL) else problems.append(request.url))
        page.goto(f"file://{file}{at}")
        page.wait_for_selector("html[data-ready]")
        if tab != "overview":
            page.click(f"#tab-{tab}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


def make_page(root: Path, *folders: Path, name: str = "report.html") -> Path:
    return write_report(collect_runs(folders), root / name)[0]


@pytest.fixture(scope="module")
def single(root: Path) -> Path:
    """One run with two agents, 4 sample files of 16 episodes with token values, and evaluations."""
    return make_page(
        root, write_run(root / "single", iterations=100, files=4, episodes_per_file=16), name="single.html"
    )


@pytest.fixture(scope="module")
def several(root: Path) -> Path:
    """Three configurations with three seeds each."""
    for rate, gain in ((1e-6, 1.0), (3e-6, 0.7), (1e-5, 0.5)):
        task = SETTINGS["task"] | {"agents": {name: {"actor": {"learning_rate": rate}} for name in AGENTS}}
        for seed in range(3):
            folder = root / "several" / f"{rate}-{seed}"
            write_run(
                folder, iterations=20, files=1, episodes_per_file=4, seed=seed, gain=gain, settings={"task": task},
                overrides=(f"actor.learning_rate={rate}",),
            )  # fmt: skip
    return make_page(root, root / "several", name="several.html")


def count_of(page: Any) -> int:
    """The number of episodes that pass the filters."""
    return int(page.inner_text("#episode-count").split()[0].replace(",", ""))


def wait_until(page: Any, condition: str) -> None:
    """Wait for a condition in JavaScript; the page's policy forbids the evaluation that `wait_for_function` needs."""
    deadline = time.monotonic() + 15
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


def wait_for_count(page: Any, count: int) -> None:
    wait_until(page, f"parseInt(document.querySelector('#episode-count').textContent.replace(',', '')) === {count}")


def title_of(page: Any) -> str:
    return page.inner_text("#viewer h2")


# The overview


def test_state_scores_and_warnings(visit: Open, single: Path) -> None:
    page = visit(single)
    cards = page.inner_text("#cards")
    assert "done" in cards
    assert re.search(r"0\.2\d\d\s*→\s*0\.8\d\d", cards)
    assert page.locator(".warnings li").count() == 2
    page.click(".warnings button >> nth=0")  # iteration 20 has no samples: the nearest file is that of 25
    assert page.get_attribute("#tab-episodes", "aria-selected") == "true"
    assert page.input_value("#filter-iteration") == "25"


def test_search_shows_other_metrics(visit: Open, single: Path) -> None:
    page = visit(single)
    names = "[...document.querySelectorAll('.panel[data-panel]')].map((node) => node.dataset.panel)"
    main = page.evaluate(names)
    assert main[:3] == ["held-out score", "score/mean", "policy/entropy"]
    assert "perf/tokens_per_second" not in main
    page.fill("#metric-search", "tokens second")
    page.wait_for_selector("[data-panel='perf/tokens_per_second'] canvas")
    assert page.evaluate(names) == ["perf/tokens_per_second"]
    page.fill("#metric-search", "no such metric")
    page.wait_for_selector("text=No metric has these words.")
    page.click("#all-metrics")
    page.wait_for_selector("[data-panel='eval/greedy/exact']")
    page.fill("#metric-search", "")
    page.wait_for_selector("[data-panel='eval/greedy/exact']", state="detached")
    assert page.evaluate(names) == main


def pixels(page: Any, panel: str, not_as: str = "") -> str:
    """The picture of a chart, once it differs from an earlier one; charts are drawn in the next frame."""
    picture = f"document.querySelector('[data-panel=\"{panel}\"] canvas').toDataURL()"
    wait_until(page, f"{picture} !== {not_as!r}")
    return page.evaluate(picture)


def test_smoothing_log_axis_and_lines_change_charts(visit: Open, single: Path) -> None:
    page = visit(single, viewport={"width": 1400, "height": 1600})
    page.wait_for_selector("[data-panel='policy/entropy'] canvas")
    pictures = [pixels(page, "policy/entropy")]
    page.locator("#smoothing").fill("0.9")
    pictures.append(pixels(page, "policy/entropy", pictures[-1]))
    page.click("button:has-text('log axis')")
    pictures.append(pixels(page, "policy/entropy", pictures[-1]))
    page.click(".legend-item:has-text('checker')")
    pictures.append(pixels(page, "policy/entropy", pictures[-1]))
    assert len(set(pictures)) == 4
    page.click(".legend-item:has-text('checker')")
    page.click("button:has-text('log axis')")
    page.locator("#smoothing").fill("0")
    wait_until(
        page, f"document.querySelector('[data-panel=\"policy/entropy\"] canvas').toDataURL() === {pictures[0]!r}"
    )


def chart_name(page: Any, panel: str) -> str:
    """First and last value of each line of a chart."""
    return str(page.get_attribute(f"[data-panel='{panel}'] .chart", "aria-label"))


def test_evaluations_are_not_smoothed(visit: Open, single: Path) -> None:
    page = visit(single, viewport={"width": 1400, "height": 1600})
    page.wait_for_selector("[data-panel='policy/entropy'] canvas")
    held_out = page.get_attribute(".panel.hero", "data-panel")
    evaluation, training = chart_name(page, held_out), chart_name(page, "policy/entropy")
    page.locator("#smoothing").fill("0.9")
    wait_until(
        page,
        f"document.querySelector('[data-panel=\"policy/entropy\"] .chart').getAttribute('aria-label') !== {training!r}",
    )
    assert chart_name(page, held_out) == evaluation


def test_values_of_earlier_iterations_have_their_iteration(visit: Open, root: Path) -> None:
    for iterations in (20, 40):
        settings = {"algorithm": {"gamma": iterations / 100}}
        folder = root / "lengths" / str(iterations)
        write_run(folder, iterations=iterations, files=1, episodes_per_file=2, settings=settings)
    page = visit(make_page(root, root / "lengths", name="lengths.html"), viewport={"width": 1400, "height": 2600})
    page.wait_for_selector("[data-panel='policy/entropy'] canvas")
    page.locator("[data-panel='policy/entropy'] .chart").focus()
    page.keyboard.press("End")
    assert page.inner_text("#tooltip").startswith("iteration 40")
    assert page.inner_text("#tooltip").count("(at 20)") == 2


def test_repeated_seeds_and_failed_runs_are_in_no_mean_line(visit: Open, root: Path) -> None:
    for name, (seed, state) in {"a": (1, "done"), "b": (2, "failed"), "c": (1, "done"), "d": (3, "done")}.items():
        write_run(root / "repeated" / name, iterations=20, files=1, episodes_per_file=2, seed=seed, state=state)
    page = visit(make_page(root, root / "repeated", name="repeated.html"))
    page.wait_for_selector("[data-panel='policy/entropy'] canvas")
    assert "(mean of 2)" in chart_name(page, "policy/entropy")
    page.click("button:has-text('mean over seeds')")
    assert chart_name(page, "policy/entropy").count("solver") == 4


def first_iteration(page: Any, panel: str) -> int:
    """The iteration at the left edge of a chart."""
    page.hover(f"[data-panel='{panel}'] .u-over", position={"x": 1, "y": 40})
    found = re.match(r"iteration (\d+)", page.inner_text("#tooltip"))
    assert found is not None
    return int(found[1])


def test_drag_zooms_all_charts_and_reset_shows_all(visit: Open, single: Path) -> None:
    page = visit(single, viewport={"width": 1400, "height": 1600})
    page.wait_for_selector("[data-panel='policy/entropy'] canvas")
    assert first_iteration(page, "policy/entropy") == 1
    assert page.is_disabled("#reset-zoom")

    def drag() -> None:
        box = page.locator("[data-panel='held-out score'] .u-over").bounding_box()
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 60, steps=4)
        page.mouse.up()

    drag()
    assert first_iteration(page, "policy/entropy") == 50
    assert page.get_attribute("#tab-overview", "aria-selected") == "true", "a drag is no click on a point"
    page.click("#reset-zoom")
    assert page.is_disabled("#reset-zoom")
    assert first_iteration(page, "policy/entropy") == 1
    drag()
    page.locator("[data-panel='held-out score'] .u-over").dblclick(position={"x": 600, "y": 20})
    page.wait_for_timeout(400)
    assert page.get_attribute("#tab-overview", "aria-selected") == "true", "a double click is no click on a point"
    assert first_iteration(page, "policy/entropy") == 1


def test_hover_shows_values_and_a_click_opens_samples(visit: Open, single: Path) -> None:
    page = visit(single)
    chart = page.locator("[data-panel='held-out score'] .u-over")
    chart.hover(position={"x": chart.bounding_box()["width"] / 2, "y": 60})
    assert page.inner_text("#tooltip").startswith("iteration 50")
    assert "sampled" in page.inner_text("#tooltip")
    assert "warning: the score of checker" in page.inner_text("#tooltip")
    chart.click(position={"x": chart.bounding_box()["width"] / 2, "y": 60})
    page.wait_for_selector("#filter-iteration")
    assert page.input_value("#filter-iteration") == "50"
    wait_for_count(page, 16)


def test_keys_move_through_a_chart(visit: Open, single: Path) -> None:
    page = visit(single)
    page.focus("[data-panel='held-out score'] .chart")
    page.keyboard.press("End")
    assert page.inner_text("#tooltip").startswith("iteration 100")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#tooltip").startswith("iteration 95")
    page.keyboard.press("Escape")
    assert page.is_hidden("#tooltip")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert page.input_value("#filter-iteration") == "25"


def test_phases_have_totals(visit: Open, single: Path) -> None:
    text = visit(single).inner_text("#phases")
    assert [
        name for name in ("rollout", "score", "targets", "update", "evaluation", "checkpoint") if name not in text
    ] == []


def test_totals_of_phases_count_all_iterations(
    visit: Open, root: Path, single: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ippo_cli.report.payload.points_per_curve", lambda rows: 10)
    reduced = visit(make_page(root, root / "single", name="reduced.html"))
    assert "have at most 10 points" in reduced.inner_text(".notice")
    assert reduced.inner_text("#phases .totals") == visit(single).inner_text("#phases .totals")


# Several runs


def test_configurations_are_compared(visit: Open, several: Path) -> None:
    page = visit(several)
    text = page.inner_text("#comparison")
    assert "actor.learning_rate=1e-06" in text
    assert page.locator("#comparison tbody >> nth=0").locator("tr").count() == 3
    assert page.locator("#differences tbody tr").count() == 3
    assert page.locator("#differences tr.clear").count() >= 1
    page.wait_for_selector(".difference canvas")
    before = page.get_attribute(".difference .chart", "aria-label")
    page.select_option("#difference-pair", "2")
    assert page.get_attribute(".difference .chart", "aria-label") != before
    page.click("summary:has-text('9 runs')")
    assert page.is_hidden("#comparison details table")


def test_seeds_are_one_mean_line_or_single_lines(visit: Open, several: Path) -> None:
    page = visit(several, viewport={"width": 1400, "height": 2600})
    page.wait_for_selector("[data-panel='policy/entropy'] canvas")
    label = "document.querySelector('[data-panel=\"policy/entropy\"] .chart').getAttribute('aria-label')"
    assert "(mean of 3)" in page.evaluate(label)
    page.click("button:has-text('mean over seeds')")
    assert "seed 2" in page.evaluate(label)
    page.click(".legend-item:has-text('1e-06')")
    assert "1e-06" not in page.evaluate(label)
    page.select_option("#phase-run", "4")


def test_only_differences_of_the_configuration(visit: Open, several: Path) -> None:
    page = visit(several, "settings")
    assert page.locator("#settings tbody tr").count() == 3
    assert "1e-6" in page.inner_text("#settings tbody")
    page.click("#only-differences")
    assert page.locator("#settings tbody tr").count() > 8
    page.fill("#settings-search", "lam 0.95")
    wait_until(page, "document.querySelectorAll('#settings tbody tr').length === 1")
    page.fill("#environment-search", "torch")
    wait_until(page, "document.querySelectorAll('#environment tbody tr').length === 1")
    page.click("#commands summary")
    page.click("#commands button >> nth=0")
    wait_until(page, "document.querySelector('#live').textContent.includes('cop')")


def test_runs_filter_episodes(visit: Open, several: Path) -> None:
    page = visit(several, "episodes")
    wait_for_count(page, 72)
    page.select_option("#filter-run", "3")
    wait_for_count(page, 8)


def test_run_without_iterations_says_so(visit: Open, root: Path) -> None:
    folder = write_run(root / "empty", iterations=1, files=0, episodes_per_file=0, state="running")
    (folder / "metrics.jsonl").write_text("")
    page = visit(make_page(root, folder, name="empty.html"))
    assert "No metrics yet" in page.inner_text("#panels")


def test_constant_and_on_policy_curves(visit: Open, root: Path) -> None:
    folder = write_run(root / "on_policy", iterations=20, files=0, episodes_per_file=0)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows[1:]:
        row |= {f"{name}/policy/approx_kl": 1e-15 for name in AGENTS}
        row |= {f"{name}/policy/clip_fraction": 0.0 for name in AGENTS}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = visit(make_page(root, folder, name="on_policy.html"))
    assert page.locator("[data-panel='policy/clip_fraction']").count() == 1
    assert page.locator("[data-panel='policy/approx_kl']").count() == 0
    page.fill("#metric-search", "approx_kl")
    page.wait_for_selector("[data-panel='policy/approx_kl']")
    page.fill("#metric-search", "clip_fraction")
    page.wait_for_selector("[data-panel='policy/clip_fraction'] canvas")
    page.evaluate(RECORD_TICKS)
    page.keyboard.press("Tab")
    page.keyboard.press("t")  # draws again
    wait_until(page, "ticks.includes('1')")
    assert "100" not in page.evaluate("ticks")


def test_equal_curves_are_one_line_with_both_names(visit: Open, root: Path) -> None:
    folder = write_run(root / "equal", iterations=20, files=0, episodes_per_file=0)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if "solver/policy/entropy" in row:
            row["checker/policy/entropy"] = row["solver/policy/entropy"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = visit(make_page(root, folder, name="equal.html"))
    page.wait_for_selector("[data-panel='policy/entropy'] canvas")
    assert "solver = checker from" in chart_name(page, "policy/entropy")


def test_axes_around_a_single_iteration(visit: Open, root: Path) -> None:
    folder = write_run(root / "one", iterations=1, files=0, episodes_per_file=0)
    page = visit(make_page(root, folder, name="one.html"), viewport={"width": 1400, "height": 2600})
    page.wait_for_selector("[data-panel='policy/entropy'] canvas")
    page.evaluate(RECORD_TICKS)
    page.keyboard.press("Tab")
    page.keyboard.press("t")  # draws again
    wait_until(page, "ticks.includes('1')")
    assert "100" not in page.evaluate("ticks")


def test_narrow_table_of_episodes_leaves_out_columns(visit: Open, single: Path) -> None:
    page = visit(single, "episodes", viewport=NARROW)
    page.wait_for_selector(".tabulator-row")
    sizes = "(part => [part.scrollWidth, part.clientWidth])(document.querySelector('.tabulator-tableholder'))"
    content, width = page.evaluate(sizes)
    assert content <= width
    assert page.locator(".tabulator-col:visible", has_text="score").count() == 1


def test_overrides_of_each_job(visit: Open, root: Path) -> None:
    folder = write_run(root / "job", iterations=2, files=0, episodes_per_file=0, overrides=("hydra.searchpath=[/x]",))
    (folder / "command.txt").write_text("ippo-train -m task=jsonl seed=0,1\n")
    page = visit(make_page(root, folder, name="job.html"), "settings")
    assert "this job: task=jsonl seed=0" in page.inner_text("#commands")
    assert "searchpath" not in page.inner_text("#commands")


# Episodes


def test_filters(visit: Open, single: Path) -> None:
    page = visit(single, "episodes")
    wait_for_count(page, 68)
    for control, value, count in (
        ("mode", "eval", 4),
        ("mode", "greedy", 2),
        ("mode", "train", 64),
        ("iteration", "75", 16),
        ("iteration", "any", 64),
        ("mode", "any", 68),
    ):
        page.select_option(f"#filter-{control}", value)
        wait_for_count(page, count)
    for flag in ("truncated", "failed", "zero_variance"):
        counts = []
        for value in ("only", "none"):
            page.select_option(f"#filter-{flag}", value)
            counts.append(count_of(page))
        assert sum(counts) == 68
        page.click("#reset-filters")
        wait_for_count(page, 68)


def test_score_range_filters_while_typing(visit: Open, single: Path) -> None:
    page = visit(single, "episodes")
    page.fill(".score-input >> nth=0", "5")
    wait_for_count(page, 0)


def test_tooltip_disappears_with_its_token(visit: Open, single: Path) -> None:
    page = visit(single, "episodes")
    for action in ("j", "1"):
        page.click("#tab-episodes")
        page.dispatch_event(".token >> nth=0", "click")  # a tap: no pointer leaves the token
        assert page.is_visible("#tooltip")
        page.keyboard.press(action)
        wait_until(page, "document.querySelector('#tooltip').hidden")


def test_tap_on_a_row_scrolls_to_the_episode_below(visit: Open, single: Path) -> None:
    page = visit(single, "episodes", viewport=NARROW)
    page.click(".tabulator-row >> nth=1")
    wait_until(page, "Math.abs(document.querySelector('#viewer').getBoundingClientRect().top) < 200")


def test_score_range_and_histogram(visit: Open, single: Path) -> None:
    page = visit(single, "episodes")
    page.fill(".score-input >> nth=0", "0.9")
    page.keyboard.press("Tab")
    high = count_of(page)
    assert 0 < high < 68
    page.click("#reset-filters")
    bins = page.locator("#histogram .bin")
    last = bins.nth(bins.count() - 1)
    assert last.get_attribute("aria-label") == f"score 1: {high} episodes"
    last.click()
    wait_for_count(page, high)
    assert page.input_value(".score-input >> nth=0") == "1"
    bins.nth(bins.count() - 1).click()
    wait_for_count(page, 68)
    page.select_option("#filter-agent", "solver")
    assert page.locator("#histogram .bin").count() == bins.count()


def test_text_search_reads_all_files(visit: Open, single: Path) -> None:
    page = visit(single, "episodes")
    page.keyboard.press("/")
    page.keyboard.type("WHAT IS 3 plus")
    wait_for_count(page, 16)
    page.fill("#episode-search", "not in any text")
    wait_for_count(page, 0)
    page.wait_for_selector("text=No episode passes the filters.")


def test_table_sorts_and_opens_episodes(visit: Open, single: Path) -> None:
    page = visit(single, "episodes")
    first = ".tabulator-row >> nth=0"
    page.wait_for_selector(first)
    page.click(".tabulator-col[tabulator-field=chars]")
    page.click(".tabulator-col[tabulator-field=chars]")
    lengths = page.locator(".tabulator-row [tabulator-field=chars]").all_inner_texts()
    assert lengths == sorted(lengths, key=lambda text: -int(text.replace(",", "")))
    page.click(first)
    number = page.inner_text(f"{first} >> [tabulator-field=id]")
    assert title_of(page) == f"Episode {number}"
    assert "current" in (page.get_attribute(first, "class") or "")


def test_keys_and_buttons_move_through_episodes(visit: Open, single: Path) -> None:
    page = visit(single, "episodes")
    page.wait_for_selector(".tabulator-row.current")
    start = title_of(page)
    page.keyboard.press("j")
    second = title_of(page)
    page.keyboard.press("ArrowDown")
    third = title_of(page)
    assert len({start, second, third}) == 3
    page.keyboard.press("k")
    assert title_of(page) == second
    page.click("[aria-label='Previous episode (k)']")
    assert title_of(page) == start
    page.click("[aria-label='Next episode (j)']")
    assert title_of(page) == second
    page.keyboard.press("ArrowUp")
    wait_until(
        page, f"document.querySelector('.tabulator-row.current [tabulator-field=id]').textContent === '{start[8:]}'"
    )


def test_tokens_have_colours_and_numbers(visit: Open, single: Path) -> None:
    page = visit(single, "episodes")
    page.wait_for_selector(".token")
    options = page.locator("#token-color option").all_inner_texts()
    assert options == [
        "nothing", "advantage", "value", "log-prob ratio (new / old)", "entropy", "KL to the reference",
        "log-probability", "return", "reward",
    ]  # fmt: skip
    colours = []
    for value in ("advantage", "value", "ratio", "entropy", "kl", "logprob", "return", "reward"):
        page.select_option("#token-color", value)
        page.wait_for_selector(".scale-legend")
        colours.append(page.evaluate("document.querySelector('.token').style.background"))
    assert len(set(colours)) > 5
    page.select_option("#token-color", "")
    page.wait_for_selector(".scale-legend", state="detached")
    page.hover(".token >> nth=1")
    text = page.inner_text("#tooltip")
    assert [
        name for name in ("log-probability", "entropy", "value", "return", "advantage", "reward") if name not in text
    ] == []
    page.focus(".tokens >> nth=0")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#tooltip").startswith("token 3:"), "from the token under the pointer"
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#tooltip").startswith("token 2:")
    page.keyboard.press("Escape")
    assert page.is_hidden("#tooltip")
    assert page.locator(".token.masked").count() == 2


def test_agents_are_side_by_side_with_the_outcome(visit: Open, single: Path) -> None:
    page = visit(single, "episodes")
    page.wait_for_selector(".turn")
    boxes = [page.locator(".agent-head").nth(place).bounding_box() for place in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[1]["x"] > boxes[0]["x"] + boxes[0]["width"]
    outcome = page.inner_text(".outcome")
    assert [name for name in ("End", "exact", "format", "credit of solver (difference)") if name not in outcome] == []
    page.click("summary:has-text('Last observations')")
    assert "the checker agrees" in page.inner_text(".outcome")


def test_group_and_prompt_through_training(visit: Open, single: Path) -> None:
    page = visit(single, "episodes")
    page.click("[data-view=group]")
    page.wait_for_selector(".sample-card")
    assert page.locator(".sample-card").count() == 4
    page.click("[data-view=prompt]")
    page.wait_for_selector(".timeline .sample-card")
    iterations = [int(text) for text in re.findall(r"iteration (\d+)", page.inner_text(".timeline"))]
    assert iterations == sorted(iterations)
    assert len(set(iterations)) == 4
    page.click(".sample-card button >> nth=0")
    page.wait_for_selector(".sample-card.current button:has-text('episode 0')")
    page.click("[data-view=episode]")
    page.wait_for_selector(".conversation")


def test_link_opens_an_episode(visit: Open, single: Path) -> None:
    page = visit(single, at="#episodes/21")
    assert title_of(page) == "Episode 21"
    page.keyboard.press("j")
    assert page.evaluate("location.hash") == f"#episodes/{title_of(page)[8:]}"


# The critic


def test_values_of_the_shown_episode(visit: Open, single: Path) -> None:
    page = visit(single, "critic")
    page.wait_for_selector("#critic-values canvas")
    text = page.inner_text("#critic-values")
    assert "tokens of solver" in text
    page.select_option("#critic-agent", "checker")
    wait_until(page, "document.querySelector('#critic-values').textContent.includes('tokens of checker')")
    before = page.inner_text("#critic-values p")
    page.click("[aria-label='Next episode']")
    wait_until(page, f"document.querySelector('#critic-values p').textContent !== {before!r}")
    page.click("[aria-label='Previous episode']")
    wait_until(page, f"document.querySelector('#critic-values p').textContent === {before!r}")
    page.locator("#critic-values .u-over").hover()
    assert "return" in page.inner_text("#tooltip")
    page.keyboard.press("2")
    assert title_of(page) in before


def test_calibration_and_turns(visit: Open, single: Path) -> None:
    page = visit(single, "critic")
    page.wait_for_selector("#calibration table")
    newest = page.inner_text("#calibration tbody")
    page.select_option("#calibration-file", "all")
    wait_until(page, f"document.querySelector('#calibration tbody').innerText !== {newest!r}")
    assert page.locator("#calibration tbody tr").count() == 2
    page.select_option("#calibration-file", label="iteration 100")
    wait_until(page, f"document.querySelector('#calibration tbody').innerText === {newest!r}")
    label = page.get_attribute("#turns .chart", "aria-label")
    assert "turn 2" in label
    page.select_option("#turn-agent", "1")
    assert "checker" in page.get_attribute("#turns .chart", "aria-label")


# The whole page


def test_themes(visit: Open, single: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    page, dark = visit(single), visit(single, scheme="dark")
    light_color, dark_color = page.evaluate(background), dark.evaluate(background)
    assert light_color != dark_color
    page.click("#theme-button")
    assert page.evaluate(background) == dark_color
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate(background) == dark_color
    page.keyboard.press("t")
    assert page.evaluate(background) == light_color


def test_tabs_and_help_by_keys(visit: Open, single: Path) -> None:
    page = visit(single)
    for key, name in (("2", "episodes"), ("3", "critic"), ("4", "settings"), ("1", "overview")):
        page.keyboard.press(key)
        assert page.is_visible(f"#panel-{name}")
        assert page.locator("[role=tabpanel]:visible").count() == 1
    page.focus("#tab-overview")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-episodes"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("?")
    assert page.is_visible("#help")
    assert page.locator("#help dt kbd").all_inner_texts()[1] == "/"
    assert "[object" not in page.inner_text("#help")
    page.click("#help button")
    assert page.is_hidden("#help")
    page.click("#help-button")
    page.keyboard.press("Escape")
    assert page.is_hidden("#help")


def test_focus_is_visible(visit: Open, single: Path) -> None:
    page = visit(single)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip-link"
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_controls_have_names(visit: Open, single: Path) -> None:
    nameless = """[...document.querySelectorAll('button, input, select, [role=img], dialog')].filter((node) => {
        const text = node.getAttribute('aria-label') || node.closest('label')?.innerText || node.innerText || '';
        return !text.trim() && node.checkVisibility();
    }).map((node) => node.outerHTML.slice(0, 120))"""
    for tab in ("overview", "episodes", "critic", "settings"):
        page = visit(single, tab)
        page.wait_for_timeout(300)
        assert page.evaluate(nameless) == []


@pytest.mark.parametrize("tab", ["overview", "episodes", "critic", "settings"])
@pytest.mark.parametrize("name", ["single", "several"])
def test_narrow_page_does_not_scroll_sideways(tab: str, name: str, visit: Open, request: pytest.FixtureRequest) -> None:
    page = visit(request.getfixturevalue(name), tab, viewport=NARROW)
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


def test_hostile_text_is_shown_as_text(visit: Open, root: Path) -> None:
    folder = write_run(root / "hostile", iterations=10, files=2, episodes_per_file=4, text=HOSTILE)
    metrics = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(
        metrics.replace("score/part/exact", "score/part/<img src=x onerror=hostile()>")
    )
    state = (folder / "run.json").read_text()
    (folder / "run.json").write_text(state.replace("62% of the turns", "<img src=x onerror=hostile()>"))
    page = visit(make_page(root, folder, name="hostile.html"))
    page.click("#all-metrics")
    page.wait_for_selector("[data-panel^='score/part/<img']")
    for tab in ("episodes", "critic", "settings"):
        page.click(f"#tab-{tab}")
        page.wait_for_timeout(200)
    page.click("#tab-episodes")
    page.wait_for_selector(".token")
    assert "</script><img src=x" in page.inner_text(".response >> nth=0")
    assert "⟨U+202E⟩" in page.inner_text(".response >> nth=0")
    page.click("[data-view=group]")
    page.wait_for_selector(".sample-card")
    assert page.locator("img").count() == 0
    assert page.evaluate("window.hostile") is None


def test_unfinished_run_without_samples(visit: Open, root: Path) -> None:
    folder = root / "bare"
    folder.mkdir()
    (folder / "run.json").write_text('{"state": "running"}')
    file = make_page(root, folder, name="bare.html")
    for tab in ("overview", "episodes", "critic", "settings"):
        page = visit(file, tab)
        page.wait_for_timeout(100)
    assert "interrupted" in visit(file).inner_text("#cards")


def test_page_says_what_is_left_out(visit: Open, root: Path, single: Path) -> None:
    runs = collect_runs([root / "single"])
    file = root / "limited.html"
    file.write_text(build_page(runs, "limited", max_bytes=1_506_000))
    page = visit(file)
    assert "are left out, because the page has a size limit" in page.inner_text(".notice >> nth=0")
    page.click("#tab-episodes")
    page.select_option("#filter-iteration", "25")
    page.wait_for_selector("#viewer .notice")


def watch_cpu(page: Any) -> Callable[[], float]:
    """Count the seconds of processor time of the page's main thread; wall time depends on what else runs."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def seconds() -> float:
        return {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}[
            "TaskDuration"
        ]

    return seconds


@pytest.mark.slow
def test_ten_thousand_episodes_open_within_two_seconds(visit: Open, root: Path) -> None:
    folder = write_run(root / "large", iterations=400, files=200, episodes_per_file=50)
    file = make_page(root, folder, name="large.html")
    assert file.stat().st_size < 30_000_000
    page = visit(root / "large.html", at="#overview")
    seconds = watch_cpu(page)
    page.reload()
    page.wait_for_selector("html[data-ready]")
    page.click("#tab-episodes")
    page.wait_for_selector(".tabulator-row")
    assert count_of(page) == 10_160
    assert seconds() < 2
    assert page.locator(".tabulator-row").count() < 200, "only visible rows are elements"
    page.fill("#episode-search", "what is 3 plus")
    wait_for_count(page, 800)


@pytest.mark.slow
def test_curves_of_many_points_stay_fluid(visit: Open, root: Path) -> None:
    folder = write_run(root / "long", iterations=100_000, files=1, episodes_per_file=1)
    page = visit(make_page(root, folder, name="long.html"), viewport={"width": 1400, "height": 1600})
    page.wait_for_selector("[data-panel='policy/entropy'] canvas")
    seconds = watch_cpu(page)
    began = seconds()
    page.evaluate("""async () => {
        const slider = document.querySelector('#smoothing');
        for (const value of [0.2, 0.4, 0.6, 0.8, 0.9]) {
            slider.value = value;
            slider.dispatchEvent(new Event('input'));
            await new Promise(requestAnimationFrame);
            await new Promise(requestAnimationFrame);
        }
    }""")
    assert (seconds() - began) / 5 < 0.5
