"""The benchmark of teams: its worlds and their bounds, what its tables say, and that nothing is trained twice."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pettingzoo", reason="needs ippo-cli[environments]")
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "bench" / "teams.py"
sys.path.insert(0, str(SCRIPT.parent))

import team_worlds  # noqa: E402
import teams  # noqa: E402
from hydra.errors import HydraException  # noqa: E402
from play import best_square  # noqa: E402
from team_games import ALGORITHMS, TASKS, Kind, exploitability, unexploited  # noqa: E402
from team_report import Run, compared, growth, matrix, tables  # noqa: E402

from ippo_cli.config.errors import ConfigError  # noqa: E402

EPISODES = 800
Player = Callable[[str, str, list[str]], str]  # of the agent's name, what it is told, and what it may answer
FOLLOWING = dict(zip(team_worlds.LETTERS, team_worlds.LETTERS[1:] + team_worlds.LETTERS[0], strict=True))
LATER = {"mappo", "ippo_centralized", "comlrl_cc", "happo", "shared_base"}


def given(**values: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"scale": "small", "more": [], "quick": False, "output": Path("/tmp/unused")} | values)


def made(task: str) -> Any:
    """The world of a task, as its overrides have it."""
    texts = [text.partition("=") for text in TASKS[task].overrides]
    arguments = {key.rpartition(".")[2]: json.loads(value) for key, _, value in texts if "_args." in key}
    (name,) = (value.rpartition(":")[2] for key, _, value in texts if key == "task.environment")
    return getattr(team_worlds, name)(**arguments)


def mean_score(world: Any, player: Player) -> tuple[float, float]:
    """The mean over agents and episodes of what they are paid, and its standard error."""
    totals = []
    for seed in range(EPISODES):
        told, _ = world.reset(seed)
        paid = dict.fromkeys(team_worlds.AGENTS, 0.0)
        over = False
        while not over:
            legal = world.actions()
            told, rewards, over, cut, _ = world.step(
                {name: player(name, text, legal[name]) for name, text in told.items()}
            )
            paid = {name: paid[name] + rewards[name] for name in paid}
            assert not cut
        totals.append(statistics.fmean(paid.values()))
    return statistics.fmean(totals), statistics.stdev(totals) / EPISODES**0.5


LUCK = random.Random(0)


def randomly(name: str, told: str, legal: list[str]) -> str:
    return LUCK.choice(legal)


def copied(name: str, told: str, legal: list[str]) -> str:
    word = told.rstrip("+-")
    return word if name == "first" else "".join(FOLLOWING[letter] for letter in word)


def met(name: str, told: str, legal: list[str]) -> str:
    """The second walker goes one step, and the first one what is left."""
    own, other = int(told[1]), int(told[2])
    ahead = (other - own) % team_worlds.CELLS
    if name == "second":
        return "s" if ahead == 0 else "r" if ahead <= 2 else "l"
    return "r" if ahead == 2 else "l" if ahead == 3 else "s"


def best_move(name: str, told: str, legal: list[str]) -> str:
    return str(best_square(told))


BEST: Mapping[str, Player] = {
    **{name: copied for name in TASKS if name.startswith("copy")},
    **{name: met for name in TASKS if name.startswith("meet")},
    "convention": lambda name, told, legal: "a",
    "stag_hunt": lambda name, told, legal: "s",
    "dilemma": lambda name, told, legal: "c",
    "tictactoe": best_move,
}
PLAYED = [name for name in TASKS if name not in ("sorting", "signalling", "duel")]


@pytest.mark.parametrize("task", PLAYED)
def test_bounds_are_what_random_and_the_best_play_earn(task: str) -> None:
    bounds = TASKS[task].bounds()
    for play, expected in ((randomly, bounds.random), (BEST.get(task), bounds.best)):
        if play is not None:  # nobody knows the best play of connect four here: nobody wins more than always
            mean, error = mean_score(made(task), play)
            assert abs(mean - expected) < 4 * error + 1e-9, (mean, error, expected)


def test_what_is_no_move_on_a_board_is_one_at_random() -> None:
    mean, error = mean_score(made("tictactoe"), lambda name, told, legal: "9")
    assert abs(mean - TASKS["tictactoe"].bounds().random) < 4 * error, (mean, error)


@pytest.mark.parametrize(
    ("task", "answer", "legal", "least"),
    [("meet", "", "s", 0.0), ("convention", "ab", "a", 0.0), ("copy_6", "a", "aa", 0.0), ("duel", "x", "r", -3.0)],
)
def test_what_is_no_action_earns_the_least_there_is(task: str, answer: str, legal: str, least: float) -> None:
    world = made(task)
    world.reset(0)
    _, paid, *_ = world.step({"first": answer, "second": legal})
    assert paid["first"] == least
    assert paid["second"] == (-least if task == "duel" else least)
    _, paid, *_ = world.step({"first": answer, "second": answer})
    assert paid["first"] == paid["second"] == 0.0


@pytest.mark.parametrize("task", ["copy_3", "copy_6"])
def test_what_is_paid_at_the_end_is_what_would_have_been_paid_before(task: str) -> None:
    def half(name: str, told: str, legal: list[str]) -> str:
        return copied(name, told, legal) if luck.random() < 0.5 else "aa"

    luck = random.Random(3)
    dense = mean_score(made(task), half)
    luck = random.Random(3)
    assert mean_score(made(f"{task}_end"), half) == pytest.approx(dense)


def test_nothing_is_paid_before_the_end_where_the_end_pays() -> None:
    world = made("copy_3_end")
    told, _ = world.reset(0)
    paid = [world.step({name: copied(name, world.word, []) for name in told})[1]["first"] for _ in range(3)]
    assert paid == [0.0, 0.0, pytest.approx(1.0)]


def test_signs_move_what_is_paid_and_nothing_of_what_is_scored() -> None:
    world = made("copy_1_signs")
    paid = {}
    for seed in range(40):
        told, _ = world.reset(seed)
        signs = told["first"][-1] + told["second"][-1]
        for answer, score in ((None, 1.0), ("x", 0.0)):  # the best, and what is no action
            told, _ = world.reset(seed)
            _, rewards, _, _, numbers = world.step({name: answer or copied(name, told[name], []) for name in told})
            assert rewards["first"] == rewards["second"]
            assert TASKS["copy_1_signs"].score({f"sampled/{key}": value for key, value in numbers.items()}) == score
            paid[signs, score] = rewards["first"]
    assert paid == {
        (one + other, score): score + (0.5 if one == "+" else -0.5) + (0.5 if other == "+" else -0.5)
        for one in "+-"
        for other in "+-"
        for score in (0.0, 1.0)
    }


def test_a_mixture_is_exploited_by_the_best_answer_to_it() -> None:
    rock, mixed = {"r": 1.0, "p": 0.0, "s": 0.0}, {"r": 0.2, "p": 0.2, "s": 0.6}
    assert exploitability(rock, rock) == pytest.approx(6.0), "both would change to paper and win three"
    assert exploitability(mixed, mixed) == pytest.approx(0.0), "the equilibrium"
    assert exploitability(rock, mixed) == pytest.approx(3.0), (
        "the second one's gain: paper wins three, and got 0 before"
    )
    shares = {f"sampled/{name}_{option}": mixed[option] for name in ("first", "second") for option in mixed}
    assert unexploited(shares) == pytest.approx(TASKS["duel"].bounds().best)
    thirds = dict.fromkeys(shares, 1 / 3)
    assert unexploited(thirds) == pytest.approx(TASKS["duel"].bounds().random) == pytest.approx(-4 / 3)


def test_a_bound_lies_below_the_other_and_scores_between_them_from_0_to_1() -> None:
    assert len(TASKS) >= 10
    for name, task in TASKS.items():
        bounds = task.bounds()
        assert bounds.random < bounds.best, name
        assert [bounds.normalised(score) for score in (bounds.random, bounds.best)] == [0.0, 1.0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_runs_on_the_episodes_that_all_run_on(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for task in {"signalling", "copy_6"} - ALGORITHMS[algorithm].cannot.keys():
        try:
            config = teams.job(task, algorithm, 0, given()).config
        except (ConfigError, HydraException) as error:
            if algorithm not in LATER:
                raise
            pytest.skip(f"this version does not know it: {str(error).splitlines()[0]}")
        assert config.num_iterations * config.rollout.buffer_size == TASKS[task].episodes
        assert config.num_iterations == 5 * config.evaluation.every
        assert config.algorithm.entropy_coef == 0


@pytest.mark.parametrize("task", TASKS)
def test_a_task_can_be_trained_on(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = teams.job(task, "ippo_clipped", 0, given()).config
    assert len(config.task.agents) == 2
    assert TASKS[task].episodes % (5 * 256) == 0


@pytest.mark.parametrize(("scale", "more"), [("large", []), ("pretrained", ["actor.model=gpt2"])])
def test_larger_settings_can_be_trained(scale: str, more: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = teams.job("copy_3", "ippo_clipped", 0, given(scale=scale, more=more)).config
    assert config.num_iterations * config.rollout.buffer_size == 8 * TASKS["copy_3"].episodes


def recorded(task: str, algorithm: str, seed: int, last: float) -> Run:
    return Run(task=task, algorithm=algorithm, seed=seed, score=last, curve=[0.0, last / 2, last], seconds=40.0)


def test_tables_have_scores_aggregates_and_the_claim() -> None:
    short, long = {"comlrl_iac": 0.5, "comlrl_cc": 0.6}, {"comlrl_iac": 0.1, "comlrl_cc": 0.7}
    runs = [
        recorded(task, name, seed, score + 0.1 * seed)
        for task, scores in (("copy_1", short), ("copy_6_end", long), ("meet_end", long))
        for name, score in {**scores, "ippo_clipped": 0.5}.items()
        for seed in (0, 1)
    ]
    text = "\n".join(tables(runs))
    assert "| `copy_1` | 0.55 (0.50 to 0.60) | 0.55 (0.50 to 0.60) | 0.65 (0.60 to 0.70) |" in text
    line = next(line for line in text.splitlines() if "`comlrl_cc` minus `comlrl_iac`" in line)
    cells = [cell.strip() for cell in line.split("|")[2:-1]]
    assert cells[0].startswith("+0.10 [")
    assert cells[5].startswith("+0.60 [")
    assert cells[5].endswith(")"), "means over the training are in brackets"
    assert cells[-1].startswith("+0.50 [")
    assert cells[1:5] == [""] * 4, "what is not recorded is not told"
    four = [matrix(runs, name, tasks) for tasks in (["copy_6_end"], ["copy_1"]) for name in ("comlrl_cc", "comlrl_iac")]
    assert growth(*four) == pytest.approx(0.5)


def test_critics_are_compared_on_the_seeds_that_both_have() -> None:
    runs = [recorded("copy_1", "comlrl_iac", seed, 0.2 + 0.3 * seed) for seed in (0, 1, 2)]
    runs.append(recorded("copy_1", "comlrl_cc", 0, 0.3))
    line = next(line for line in tables(runs) if "`comlrl_cc` minus `comlrl_iac`" in line)
    assert line.split("|")[2].split() == ["+0.10", "(+0.05)"]


def test_algorithms_are_aggregated_over_the_same_tasks() -> None:
    runs = [recorded(task, "ippo_clipped", seed, 0.5) for task in ("copy_1", "copy_3", "dilemma") for seed in (0, 1)]
    runs += [recorded("copy_1", "grpo", seed, 0.9) for seed in (0, 1)]
    runs += [recorded(task, "ippo", 1, 0.2) for task in ("copy_1", "copy_3")]
    assert compared(runs, (Kind.team,)) == (["copy_1", "copy_3"], ["ippo", "ippo_clipped"], ["grpo"])
    text = "\n".join(tables(runs))
    assert "Not on all of these tasks yet: `grpo`." in text
    assert "| `ippo` | 1 | 0.20 | 0.10 |" in text, "one seed has no interval"
    assert recorded("copy_1", "ippo", 0, 0.8).mean == pytest.approx(0.4)


def test_what_one_algorithm_cannot_do_is_in_no_aggregate() -> None:
    runs = [recorded(task, "ippo_clipped", 0, 0.5) for task in ("signalling", "copy_1")]
    assert compared(runs, (Kind.team,))[0] == ["signalling", "copy_1"]
    runs.append(recorded("copy_1", "happo", 0, 0.6))
    assert compared(runs, (Kind.team,)) == (["copy_1"], ["ippo_clipped", "happo"], [])
    assert any(line.startswith("Without `signalling`, which `happo` cannot do") for line in tables(runs))


def test_nothing_is_recorded_at_first() -> None:
    assert tables([])[-1] == "Nothing is recorded yet."


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The benchmark with these arguments, whose runs and pages lie in the test's folder; its exit code."""

    def call(*arguments: str) -> int:
        common = ["--output", str(tmp_path / "out"), "--docs", str(tmp_path), "--seeds", "0"]
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *common, *arguments])
        monkeypatch.chdir(tmp_path)
        return teams.main()

    return call


@pytest.mark.slow
def test_runs_are_recorded_and_not_repeated(
    bench: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ("--quick", "--tasks", "duel", "--algorithms", "ippo_clipped", "comlrl_iac")
    assert bench(*ask) == 0
    file = tmp_path / "data" / "teams.json"
    before = file.read_text()
    rows = json.loads(before)
    assert [(row["task"], row["variant"], row["seed"], row["error"]) for row in rows] == [
        ("duel", "comlrl_iac", 0, None),
        ("duel", "ippo_clipped", 0, None),
    ]
    for row in rows:
        assert all(point["held_out"] for point in row["curve"])
        assert row["curve"][-1]["score"] == row["last"] < 0
        assert str(tmp_path) not in json.dumps(row), "where a run lay is no part of it"
    assert (tmp_path / "pictures").exists() is False, "the picture is of tasks where both are paid the same"
    assert "| `duel` |" in (tmp_path / "teams.md").read_text()

    capsys.readouterr()
    assert bench(*ask) == 0
    assert "0 runs to do" in capsys.readouterr().out
    assert file.read_text() == before

    rows[0]["overrides"][-1] = "name=something_else"  # as if the settings had been others
    file.write_text(json.dumps(rows))
    assert bench(*ask) == 0
    assert "1 runs to do" in capsys.readouterr().out
    assert file.read_text() == before, "the finished run in the folder is taken"
    assert len(list((tmp_path / "out" / "runs").glob("*/*/run.json"))) == 2


def test_pictures_are_drawn_of_what_is_recorded(tmp_path: Path) -> None:
    from team_curves import draw

    runs = [recorded("copy_1", name, seed, 0.5 + seed / 10) for name in ("ippo_clipped", "grpo") for seed in (0, 1)]
    files = draw(runs, tmp_path)
    assert [file.name for file in files] == ["teams-profiles.svg", "teams-efficiency.svg"]
    assert all("grpo" in file.read_text() for file in files)
    assert draw([replace(run, task="duel") for run in runs], tmp_path) == []
