"""The benchmark of teams: environments, bounds, tables, and reuse of finished runs."""

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

import team_boards  # noqa: E402
import teams  # noqa: E402
from hydra.errors import HydraException  # noqa: E402
from play import best_square  # noqa: E402
from team_games import (  # noqa: E402
    ALGORITHMS,
    ENUMERATED_TASKS,
    TASKS,
    Kind,
    find_score,
    unexploited,
)
from team_report import Run, compared, tables  # noqa: E402

from ippo_cli.benchmark import environments  # noqa: E402
from ippo_cli.benchmark.bounds import act_uniformly, exploitability, game_tree  # noqa: E402
from ippo_cli.benchmark.turn_games import AGENTS, LETTERS, Kuhn  # noqa: E402
from ippo_cli.config.errors import ConfigError  # noqa: E402
from ippo_cli.formulas.game_tree import expected_payoffs, nash_conv  # noqa: E402

EPISODES = 800
Player = Callable[[str, str, list[str]], str]  # (agent name, observation, legal actions) -> action
FOLLOWING = dict(zip(LETTERS, LETTERS[1:] + LETTERS[0], strict=True))
LATER = {"mappo", "ippo_centralized", "comlrl_cc", "happo", "shared_base"}


def make_arguments(**values: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"scale": "small", "more": [], "quick": False, "output": Path("/tmp/unused")} | values)


def make_environment(task: str) -> Any:
    """Create the environment of a task from its overrides."""
    texts = [text.partition("=") for text in (TASKS | ENUMERATED_TASKS)[task].overrides]
    arguments = {key.rpartition(".")[2]: json.loads(value) for key, _, value in texts if "_args." in key}
    (name,) = (value.rpartition(":")[2] for key, _, value in texts if key == "task.environment")
    return getattr(team_boards if hasattr(team_boards, name) else environments, name)(**arguments)


def mean_score(environment: Any, player: Player) -> tuple[float, float]:
    """Return the mean return over agents and episodes, and its standard error."""
    totals = []
    for seed in range(EPISODES):
        observations, _ = environment.reset(seed)
        paid = dict.fromkeys(AGENTS, 0.0)
        over = False
        while not over:
            legal = environment.actions()
            observations, rewards, over, cut, _ = environment.step(
                {name: player(name, text, legal[name]) for name, text in observations.items()}
            )
            paid = {name: paid[name] + rewards.get(name, 0.0) for name in paid}
            assert not cut
        totals.append(statistics.fmean(paid.values()))
    return statistics.fmean(totals), statistics.stdev(totals) / EPISODES**0.5


RNG = random.Random(0)


def random_action(name: str, observation: str, legal: list[str]) -> str:
    return RNG.choice(legal)


def copy_action(name: str, observation: str, legal: list[str]) -> str:
    word = observation.rstrip("+-")
    return word if name == "first" else "".join(FOLLOWING[letter] for letter in word)


def meet_action(name: str, observation: str, legal: list[str]) -> str:
    """The second walker moves one step, the first one the rest."""
    position, goal = int(observation[1]), int(observation[2])
    ahead = (goal - position) % environments.CELLS
    if name == "second":
        return "s" if ahead == 0 else "r" if ahead <= 2 else "l"
    return "r" if ahead == 2 else "l" if ahead == 3 else "s"


def tictactoe_action(name: str, observation: str, legal: list[str]) -> str:
    return str(best_square(observation))


BEST: Mapping[str, Player] = {
    **{name: copy_action for name in TASKS if name.startswith("copy")},
    **{name: meet_action for name in TASKS if name.startswith("meet")},
    "convention": lambda name, observation, legal: "a",
    "stag_hunt": lambda name, observation, legal: "s",
    "dilemma": lambda name, observation, legal: "c",
    "tictactoe": tictactoe_action,
    "caller": lambda name, observation, legal: observation[-1],  # a question mark, or the letter
}
PLAYED = [name for name in TASKS if name not in ("sorting", "signalling", "duel")]


@pytest.mark.parametrize("task", PLAYED)
def test_bounds_match_random_and_best_play(task: str) -> None:
    bounds = TASKS[task].bounds()
    for play, expected in ((random_action, bounds.random), (BEST.get(task), bounds.best)):
        if play is not None:  # the best play of connect four is not implemented; its bound is to win always
            mean, error = mean_score(make_environment(task), play)
            assert abs(mean - expected) < 4 * error + 1e-9, (mean, error, expected)


def test_invalid_move_is_replaced_by_a_random_move() -> None:
    mean, error = mean_score(make_environment("tictactoe"), lambda name, observation, legal: "9")
    assert abs(mean - TASKS["tictactoe"].bounds().random) < 4 * error, (mean, error)


@pytest.mark.parametrize(
    ("task", "answer", "legal", "minimum"),
    [("meet", "", "s", 0.0), ("convention", "ab", "a", 0.0), ("copy_6", "a", "aa", 0.0), ("duel", "x", "r", -3.0)],
)
def test_invalid_action_earns_the_minimum(task: str, answer: str, legal: str, minimum: float) -> None:
    environment = make_environment(task)
    environment.reset(0)
    _, paid, *_ = environment.step({"first": answer, "second": legal})
    assert paid["first"] == minimum
    assert paid["second"] == (-minimum if task == "duel" else minimum)
    _, paid, *_ = environment.step({"first": answer, "second": answer})
    assert paid["first"] == paid["second"] == 0.0


@pytest.mark.parametrize("task", ["copy_3", "copy_6"])
def test_reward_at_the_end_equals_the_sum_of_step_rewards(task: str) -> None:
    def half_optimal_action(name: str, observation: str, legal: list[str]) -> str:
        return copy_action(name, observation, legal) if rng.random() < 0.5 else "aa"

    rng = random.Random(3)
    dense = mean_score(make_environment(task), half_optimal_action)
    rng = random.Random(3)
    assert mean_score(make_environment(f"{task}_end"), half_optimal_action) == pytest.approx(dense)


def test_delayed_reward_is_zero_before_the_end() -> None:
    environment = make_environment("copy_3_end")
    observations, _ = environment.reset(0)
    paid = [
        environment.step({name: copy_action(name, environment.word, []) for name in observations})[1]["first"]
        for _ in range(3)
    ]
    assert paid == [0.0, 0.0, pytest.approx(1.0)]


def test_signs_change_rewards_but_not_scores() -> None:
    environment = make_environment("copy_1_signs")
    paid = {}
    for seed in range(40):
        observations, _ = environment.reset(seed)
        signs = observations["first"][-1] + observations["second"][-1]
        for answer, score in ((None, 1.0), ("x", 0.0)):  # the best action and an invalid one
            observations, _ = environment.reset(seed)
            _, rewards, _, _, numbers = environment.step(
                {name: answer or copy_action(name, observations[name], []) for name in observations}
            )
            assert rewards["first"] == rewards["second"]
            assert find_score("copy_1_signs")({f"sampled/{key}": value for key, value in numbers.items()}) == score
            paid[signs, score] = rewards["first"]
    assert paid == {
        (first + second, score): score + (0.5 if first == "+" else -0.5) + (0.5 if second == "+" else -0.5)
        for first in "+-"
        for second in "+-"
        for score in (0.0, 1.0)
    }


def test_exploitability_of_mixed_strategies() -> None:
    rock, equilibrium = {"r": 1.0, "p": 0.0, "s": 0.0}, {"r": 0.2, "p": 0.2, "s": 0.6}
    assert exploitability(rock, rock) == pytest.approx(6.0), "both players gain three with paper"
    assert exploitability(equilibrium, equilibrium) == pytest.approx(0.0), "the equilibrium"
    assert exploitability(rock, equilibrium) == pytest.approx(3.0), (
        "the second player gains: paper wins three instead of 0"
    )
    fractions = {
        f"sampled/{name}_{option}": equilibrium[option] for name in ("first", "second") for option in equilibrium
    }
    assert unexploited(fractions) == pytest.approx(TASKS["duel"].bounds().best)
    thirds = dict.fromkeys(fractions, 1 / 3)
    assert unexploited(thirds) == pytest.approx(TASKS["duel"].bounds().random) == pytest.approx(-4 / 3)


def test_exploitability_of_poker() -> None:
    assert ENUMERATED_TASKS["kuhn"].bounds().random == pytest.approx(-11 / 12)
    bets = {"K": 0.6, "Q": 0.0, "J": 0.2, "Kpb": 1.0, "Qpb": 0.2 + 1 / 3, "Jpb": 0.0}
    bets |= {"Kp": 1.0, "Qp": 0.0, "Jp": 1 / 3, "Kb": 1.0, "Qb": 1 / 3, "Jb": 0.0}
    game = game_tree(Kuhn(), lambda _, seen, __: [1 - bets[seen], bets[seen]])
    assert nash_conv(game, 2) == pytest.approx(0.0, abs=1e-9), "an equilibrium"
    assert expected_payoffs(game_tree(Kuhn(), act_uniformly))[0] == pytest.approx(1 / 8)


def test_invalid_actions_end_poker_and_calls() -> None:
    poker = make_environment("kuhn")
    poker.reset(0)
    assert poker.step({"first": "x"})[1:4] == ({"first": -2.0, "second": 2.0}, True, False)
    caller = make_environment("caller")
    caller.reset(0)
    assert caller.step({"first": "?"})[0] == {"second": "a"}
    assert caller.step({"second": "?"})[1:4] == ({"first": -0.2, "second": -0.2}, True, False)


def test_bounds_are_ordered_and_normalise_to_0_and_1() -> None:
    assert len(TASKS) >= 10
    for name, task in TASKS.items():
        bounds = task.bounds()
        assert bounds.random < bounds.best, name
        assert [bounds.normalise(score) for score in (bounds.random, bounds.best)] == [0.0, 1.0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithms_use_the_same_number_of_episodes(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for task in {"signalling", "copy_6"} - ALGORITHMS[algorithm].cannot.keys():
        try:
            config = teams.job(task, algorithm, 0, make_arguments()).config
        except (ConfigError, HydraException) as error:
            if algorithm not in LATER:
                raise
            pytest.skip(f"not supported by this version: {str(error).splitlines()[0]}")
        assert config.num_iterations * config.rollout.buffer_size == TASKS[task].episodes
        assert config.num_iterations == 5 * config.evaluation.every
        assert config.algorithm.entropy_coef == 0


@pytest.mark.parametrize("task", TASKS)
def test_task_config_is_valid(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = teams.job(task, "ippo_clipped", 0, make_arguments()).config
    assert len(config.task.agents) == 2
    assert TASKS[task].episodes % (5 * 256) == 0


@pytest.mark.parametrize(("scale", "more"), [("large", []), ("pretrained", ["actor.model=gpt2"])])
def test_larger_settings_are_valid(scale: str, more: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = teams.job("copy_3", "ippo_clipped", 0, make_arguments(scale=scale, more=more)).config
    assert config.num_iterations * config.rollout.buffer_size == 4 * TASKS["copy_3"].episodes
    assert hasattr(config.actor, "warm_start_steps") == (scale == "large")


def test_warm_start_is_a_setting_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    steps = {
        task: teams.job(task, "ippo_clipped", 0, make_arguments()).config.actor.warm_start_steps
        for task in ("signalling", "copy_1", "copy_6")
    }
    assert steps == {"signalling": 100, "copy_1": 10, "copy_6": 30}


def make_run(task: str, algorithm: str, seed: int, last: float) -> Run:
    return Run(task=task, algorithm=algorithm, seed=seed, score=last, curve=[0.0, last / 2, last], seconds=40.0)


def test_tables_have_scores_aggregates_and_growth() -> None:
    short, long = {"comlrl_iac": 0.5, "comlrl_cc": 0.6}, {"comlrl_iac": 0.1, "comlrl_cc": 0.7}
    runs = [
        make_run(task, name, seed, score + 0.1 * seed)
        for task, scores in (("copy_1", short), ("copy_6_end", long), ("meet_end", long))
        for name, score in {**scores, "ippo_clipped": 0.5}.items()
        for seed in (0, 1)
    ]
    text = "\n".join(tables(runs))
    assert "| `copy_1` | 0.55 (0.50 to 0.60) | 0.55 (0.50 to 0.60) | 0.65 (0.60 to 0.70) | 40 |" in text
    line = next(line for line in text.splitlines() if "`comlrl_cc` minus `comlrl_iac`" in line)
    cells = [cell.strip() for cell in line.split("|")[2:-1]]
    assert cells[0].startswith("+0.10 [")
    assert cells[1].startswith("+0.60 [")
    assert cells[1].endswith(")"), "means over training are in parentheses"
    assert cells[2].startswith("+0.50 [")
    assert cells[3:] == ["1.00"], "the ratio of processor times"
    header = (
        "| | short, dense: `copy_1` | long, sparse: `copy_6_end` `meet_end` | long, sparse minus short, dense | time |"
    )
    assert header in text, "horizons without runs are omitted"
    assert "`mappo` minus" not in text, "pairs without runs are omitted"
    assert "| `copy_1` | one agent copies two letters, the other writes the following letters | team | 1 |" in text
    assert "of all kinds" not in text, "the same tasks"
    short_tasks = "\n".join(tables([run for run in runs if run.task == "copy_1"]))
    assert "| | short, dense: `copy_1` | time |" in short_tasks


def test_solved_tasks_are_counted_by_the_mean_of_their_best_algorithm() -> None:
    runs = [make_run("copy_1", "ippo_clipped", seed, last) for seed, last in ((0, 0.85), (1, 0.99))]
    runs += [make_run("copy_3", "ippo_clipped", seed, last) for seed, last in ((0, 0.75), (1, 0.99))]
    runs += [make_run("copy_3", "grpo", 0, 0.3), make_run("meet", "grpo", 0, 0.95)]
    assert "The best algorithm has a mean of at least 0.9 on 2 of 3 tasks." in tables(runs)


def test_critics_are_compared_on_common_seeds() -> None:
    runs = [make_run("copy_1", "comlrl_iac", seed, 0.2 + 0.3 * seed) for seed in (0, 1, 2)]
    runs.append(make_run("copy_1", "comlrl_cc", 0, 0.3))
    line = next(line for line in tables(runs) if "`comlrl_cc` minus `comlrl_iac`" in line)
    assert line.split("|")[2].split() == ["+0.10", "(+0.05)"]


def test_time_ratio_is_of_common_tasks_and_seeds() -> None:
    times = {("copy_1", "response_value", 0): 40, ("copy_1", "response_value_centralized", 0): 60}
    times |= {("copy_1", "response_value", 1): 900, ("meet", "response_value_centralized", 0): 900}
    runs = [replace(make_run(*key, 0.5), seconds=float(seconds)) for key, seconds in times.items()]
    line = next(line for line in tables(runs) if "`response_value_centralized` minus `response_value`" in line)
    assert line.endswith("| 1.50 |")


def test_tasks_of_one_algorithm_are_not_aggregated() -> None:
    runs = [make_run(task, "ippo_clipped", 0, 0.5) for task in ("copy_1", "copy_3")]
    assert compared(runs, (Kind.team,)) == (["copy_1", "copy_3"], ["ippo_clipped"], [])
    runs.append(make_run("copy_1", "grpo", 0, 0.9))
    assert compared(runs, (Kind.team,)) == (["copy_1"], ["ippo_clipped", "grpo"], [])


def test_algorithms_are_aggregated_over_common_tasks() -> None:
    runs = [make_run(task, "ippo_clipped", seed, 0.5) for task in ("copy_1", "copy_3", "dilemma") for seed in (0, 1)]
    runs += [make_run("copy_1", "grpo", seed, 0.9) for seed in (0, 1)]
    runs += [make_run(task, "ippo", 1, 0.2) for task in ("copy_1", "copy_3")]
    assert compared(runs, (Kind.team,)) == (["copy_1", "copy_3"], ["ippo", "ippo_clipped"], ["grpo"])
    text = "\n".join(tables(runs))
    assert "Not run on all of these tasks: `grpo`." in text
    assert "`copy_6`" not in text, "tasks without runs are not listed"
    assert "| `ippo` | 1 | 0.20 | 0.10 |" in text, "one seed has no interval"
    assert make_run("copy_1", "ippo", 0, 0.8).mean == pytest.approx(0.4)


def test_unsupported_task_is_explained_once_if_it_is_recorded() -> None:
    runs = [make_run(task, name, 0, 0.5) for task in ("signalling", "copy_1") for name in ("ippo_clipped", "happo")]
    assert "\n".join(tables(runs)).count("Without `signalling`, which `happo` cannot do") == 1
    assert "Without" not in "\n".join(tables(runs[2:]))


def test_unsupported_task_is_excluded_from_aggregates() -> None:
    runs = [make_run(task, "ippo_clipped", 0, 0.5) for task in ("signalling", "copy_1")]
    assert compared(runs, (Kind.team,))[0] == ["signalling", "copy_1"]
    runs.append(make_run("copy_1", "happo", 0, 0.6))
    assert compared(runs, (Kind.team,)) == (["copy_1"], ["ippo_clipped", "happo"], [])
    assert any(line.startswith("Without `signalling`, which `happo` cannot do") for line in tables(runs))


def test_tables_without_runs() -> None:
    assert tables([])[-1] == "Nothing is recorded yet."


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Function that runs the benchmark in the test's folder and returns its exit code."""

    def run_benchmark(*arguments: str) -> int:
        common = ["--output", str(tmp_path / "out"), "--docs", str(tmp_path), "--seeds", "0"]
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *common, *arguments])
        monkeypatch.chdir(tmp_path)
        return teams.main()

    return run_benchmark


@pytest.mark.slow
def test_runs_are_recorded_and_reused(
    bench: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--quick", "--tasks", "duel", "--algorithms", "ippo_clipped", "comlrl_iac")
    assert bench(*arguments) == 0
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
        assert str(tmp_path) not in json.dumps(row), "the run's folder is not recorded"
    assert (tmp_path / "pictures").exists() is False, "pictures exclude games with different rewards"
    assert "| `duel` |" in (tmp_path / "results.md").read_text()

    capsys.readouterr()
    assert bench(*arguments) == 0
    assert "0 runs to do" in capsys.readouterr().out
    assert file.read_text() == before

    rows[0]["overrides"][-1] = "name=something_else"  # as with other settings
    file.write_text(json.dumps(rows))
    assert bench("--quick", "--report") == 0
    assert "1 runs are recorded (1 more with other settings)" in capsys.readouterr().out
    assert bench(*arguments) == 0
    assert "1 runs to do" in capsys.readouterr().out
    rows = [row | {"cpu_seconds": 0} for row in json.loads(before)]  # unknown for a run that is read from its folder
    assert [row | {"cpu_seconds": 0} for row in json.loads(file.read_text())] == rows, "the finished run is reused"
    assert len(list((tmp_path / "out" / "runs").glob("*/*/run.json"))) == 2


def test_pictures_of_recorded_runs(tmp_path: Path) -> None:
    from team_curves import draw

    runs = [make_run("copy_1", name, seed, 0.5 + seed / 10) for name in ("ippo_clipped", "grpo") for seed in (0, 1)]
    files = draw(runs, tmp_path)
    assert [file.name for file in files] == ["teams-profiles.svg", "teams-efficiency.svg"]
    assert all("grpo" in file.read_text() for file in files)
    assert draw([replace(run, task="duel") for run in runs], tmp_path) == []
