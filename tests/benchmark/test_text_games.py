"""Text games of TextArena: bounds against enumeration, scores of known answers, and a missing package."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ippo_cli.benchmark.commands import run_subcommand
from ippo_cli.benchmark.replay import load_rows, play_valid_responses
from ippo_cli.benchmark.result import read_result
from ippo_cli.benchmark.tasks import BENCHMARK_TASKS
from ippo_cli.benchmark.text_games import TextGame, compute_equal_values_probability, find_best_trade
from ippo_cli.benchmark.turn_games import AGENTS
from ippo_cli.cli.command_keys import OWN_KEYS
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import UserEnvironmentConfig

Holding = tuple[int, ...]  # units of each resource


def run(command: str, *arguments: str) -> None:
    run_subcommand(command, arguments, OWN_KEYS["ippo-bench"], OWN_KEYS["ippo-controls"])


def make_game(name: str) -> TextGame:
    pytest.importorskip("textarena", reason="needs ippo-cli[textarena]")
    config = load_rows(name, "team", 0).config.task
    assert isinstance(config, UserEnvironmentConfig)
    return TextGame(**config.environment_args)


def find_reachable(holdings: tuple[Holding, Holding]) -> set[tuple[Holding, Holding]]:
    """Return all allocations after any number of trades; each side of a trade gives at least one unit."""
    reached, open_ = {holdings}, [holdings]
    while open_:
        one, other = open_.pop()
        gifts = [[units for units in product(*(range(count + 1) for count in own)) if any(units)] for own in (one, other)]
        for given, taken in product(*gifts):
            moved = [taken_ - given_ for given_, taken_ in zip(given, taken, strict=True)]
            after = (
                tuple(count + change for count, change in zip(one, moved, strict=True)),
                tuple(count - change for count, change in zip(other, moved, strict=True)),
            )
            if after not in reached:
                reached.add(after)
                open_.append(after)
    return reached


def test_best_trade_matches_all_sequences_of_trades() -> None:
    rng = random.Random(0)
    one_way = 0
    for _ in range(150):
        held = tuple(tuple(rng.randint(1, 2) for _ in "abc") for _ in AGENTS)
        values = [[rng.randint(4, 6) for _ in "abc"] for _ in AGENTS]
        joint = [
            sum(count * value for own, worth in zip(holdings, values, strict=True) for count, value in zip(own, worth))
            for holdings in find_reachable((held[0], held[1]))
        ]
        start = sum(count * value for own, worth in zip(held, values, strict=True) for count, value in zip(own, worth))
        state = {
            "player_resources": [dict(zip("abc", own, strict=True)) for own in held],
            "player_values": [dict(zip("abc", own, strict=True)) for own in values],
        }
        signs = {(a > b) - (a < b) for a, b in zip(*values, strict=True)}
        one_way += signs in ({1}, {-1})
        assert find_best_trade(state) == max(joint) - start, state
    assert one_way > 5


def trade_optimally(game: TextGame, seed: int) -> float:
    """The first agent tells its values, the second offers the best trade, the first accepts; return the score."""
    observations, _ = game.reset(seed)
    lines = [line.split() for line in observations["first"].splitlines() if "Qty:" in line]
    told = " ".join(f"{line[3]} {line[5]}" for line in lines)
    observations, *_ = game.step({"first": told})
    (message,) = (line for line in observations["second"].splitlines() if line.startswith("[Player 0]"))
    theirs = [int(number) for number in message.translate(str.maketrans("[]", "  ")).split()[2:]]
    own = [line.split() for line in observations["second"].splitlines() if "Qty:" in line]
    give, take = [], []
    gains = {}
    for place, (_, name, _, count, _, value) in enumerate(own):
        held, worth = theirs[2 * place : 2 * place + 2]
        name = name.strip("[]")
        gains[name] = worth - int(value)
        (give if worth >= int(value) else take).append(f"{count if worth >= int(value) else held} {name}")
    cheapest = min(gains, key=lambda name: abs(gains[name]))
    offer = f"[Offer: {', '.join(give) or f'1 {cheapest}'} -> {', '.join(take) or f'1 {cheapest}'}]"
    game.step({"second": offer})
    *_, is_over, _, parts = game.step({"first": "[Accept]"})
    assert is_over
    return parts["joint"]


def test_agents_that_talk_reach_the_best_score() -> None:
    game = make_game("negotiation")
    assert [trade_optimally(game, seed) for seed in range(200)] == pytest.approx([1.0] * 200)


def test_score_has_a_lower_limit_and_rewards_have_none() -> None:
    game, worst = make_game("negotiation"), []
    for seed in range(40):
        game.reset(seed)
        game.step({"first": "Hello"})
        resources, values = game.state["player_resources"], game.state["player_values"]
        pairs = {
            side: [f"{resources[side][name]} {name}" for name in resources[0] if values[side][name] > values[1 - side][name]]
            for side in (0, 1)
        }
        if not all(pairs.values()):
            continue
        game.step({"second": f"[Offer: {', '.join(pairs[1])} -> {', '.join(pairs[0])}]"})
        _, rewards, _, _, parts = game.step({"first": "[Accept]"})
        assert rewards["first"] == rewards["second"] < 0
        assert parts["joint"] == pytest.approx(max(rewards["first"], -1.0))
        worst.append(rewards["first"])
    assert min(worst) < -1 < max(worst)


def play_all(game: TextGame, moves: list[Mapping[str, str]]) -> Iterator[tuple[float, dict[str, float]]]:
    """Yield the probability and the total rewards of uniform play over listed answers, for all games of a seed."""
    observations, _ = game.reset(0)
    totals, is_over = dict.fromkeys(AGENTS, 0.0), False
    for move in moves:
        _, rewards, is_over, *_ = game.step(move)
        totals = {name: totals[name] + rewards[name] for name in AGENTS}
    if is_over:
        yield 1.0, {**totals, "joint": game.score()}
        return
    ((agent, answers),) = game.actions().items()
    for answer in list(answers):
        for share, found in play_all(game, [*moves, {agent: answer}]):
            yield share / len(answers), found


def test_bounds_of_ultimatum_match_all_games() -> None:
    games = list(play_all(make_game("ultimatum"), []))
    bounds = BENCHMARK_TASKS["ultimatum"].bounds()
    assert len(games) == (11 * 2) ** 2
    assert sum(share * found["joint"] for share, found in games) == pytest.approx(bounds.random)
    assert max(found["joint"] for _, found in games) == bounds.best == bounds.single
    assert all(found["first"] + found["second"] == pytest.approx(2 * found["joint"]) for _, found in games)
    assert any(found["first"] != found["second"] for _, found in games)


def test_games_without_gain_are_rare() -> None:
    assert compute_equal_values_probability() == pytest.approx(1 / 6930)
    assert find_best_trade({"player_resources": [{"a": 5}] * 2, "player_values": [{"a": 3}] * 2}) == 0


def test_responses_are_imported_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_game("negotiation")
    file, target = tmp_path / "answers.jsonl", tmp_path / "result.json"
    run("prompts", "negotiation", f"to={file}", "seeds=1")
    rows, loaded = [json.loads(line) for line in file.read_text().splitlines()], load_rows("negotiation", "team", 0)
    assert rows[0]["actions"]["first"][0] == "[Offer: 1 Wheat -> 1 Wood]"
    for row in rows:
        responses = play_valid_responses(loaded, row["row"], random.Random(row["row"]))
        row["responses"] = [[agent, "[Deny]"] for agent, _ in responses]
    file.write_text("".join(json.dumps({key: row[key] for key in ("version", "seed", "row", "responses")}) + "\n" for row in rows))
    run("import", str(file), "task=negotiation", "entry=no_deal", f"to={target}")
    assert [found.score for found in read_result(target).runs] == [0.0]
    run("table", str(target))
    assert "negotiation" in capsys.readouterr().out


def test_missing_package_is_named_and_other_tasks_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ippo_cli.benchmark.replay.find_spec", lambda _: None)
    monkeypatch.setattr("ippo_cli.benchmark.text_games.find_spec", lambda _: None)
    for command, *arguments in (
        ("run", "ultimatum"),
        ("prompts", "ultimatum", "to=x"),
        ("import", "answers.jsonl", "task=ultimatum", "entry=x"),
    ):
        with pytest.raises(ConfigError, match=r"needs the package textarena.*pip install 'ippo-cli\[textarena\]'"):
            run(command, *arguments)
    with pytest.raises(ImportError, match=r"pip install 'ippo-cli\[textarena\]'"):
        TextGame("X-v0", "p", 1, "a:b")
    run("list")
    run("prompts", "copy_1", f"to={tmp_path / 'rows'}", "seeds=1")
    assert "0.000 no deal" in capsys.readouterr().out
