"""Text games of TextArena: bounds against enumeration, scores of known answers, and a missing package."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

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
    reached, remaining = {holdings}, [holdings]
    while remaining:
        one, other = remaining.pop()
        gifts, returns = (
            [units for units in product(*(range(n + 1) for n in own)) if any(units)] for own in (one, other)
        )
        for out, back in product(gifts, returns):
            after = (
                tuple(n - sent + got for n, sent, got in zip(one, out, back, strict=True)),
                tuple(n + sent - got for n, sent, got in zip(other, out, back, strict=True)),
            )
            if after not in reached:
                reached.add(after)
                remaining.append(after)
    return reached


def value_holdings(holdings: Sequence[Holding], values: Sequence[Holding]) -> int:
    """Return the sum of both players' values of their own units."""
    return sum(
        n * worth for own, prices in zip(holdings, values, strict=True) for n, worth in zip(own, prices, strict=True)
    )


def test_best_trade_matches_all_sequences_of_trades() -> None:
    rng, one_way = random.Random(0), 0
    for _ in range(60):
        held = tuple(rng.randint(1, 2) for _ in "abc"), tuple(rng.randint(1, 2) for _ in "abc")
        values = [tuple(rng.randint(4, 6) for _ in "abc") for _ in AGENTS]
        best = max(value_holdings(holdings, values) for holdings in find_reachable(held)) - value_holdings(held, values)
        state = {
            "player_resources": [dict(zip("abc", own, strict=True)) for own in held],
            "player_values": [dict(zip("abc", own, strict=True)) for own in values],
        }
        assert find_best_trade(state) == best, state
        one_way += len({(a > b) - (a < b) for a, b in zip(*values, strict=True)} - {0}) == 1 and values[0] != values[1]
    assert one_way > 5


def trade_optimally(game: TextGame, seed: int) -> float:
    """Play the best score: the first agent states what it has, the second offers the best trade; return the score."""
    observations, _ = game.reset(seed)
    listed = re.findall(r"(\w+)\]\s+Qty: (\d+)\s+Value: (\d+)", observations["first"])
    observations, *_ = game.step({"first": " ".join(f"{n} {value}" for _, n, value in listed)})
    (message,) = (line for line in observations["second"].splitlines() if line.startswith("[Player 0]"))
    theirs = [int(number) for number in re.findall(r"\d+", message.removeprefix("[Player 0]"))]
    own = re.findall(r"(\w+)\]\s+Qty: (\d+)\s+Value: (\d+)", observations["second"])
    offered, requested, gains = [], [], {}
    for (name, n, value), their_n, their_value in zip(own, theirs[::2], theirs[1::2], strict=True):
        gains[name] = their_value - int(value)
        (offered if gains[name] >= 0 else requested).append(f"{n if gains[name] >= 0 else their_n} {name}")
    returned = [f"1 {min(gains, key=lambda name: abs(gains[name]))}"]  # if all go to one agent
    game.step({"second": f"[Offer: {', '.join(offered or returned)} -> {', '.join(requested or returned)}]"})
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
            side: [
                f"{resources[side][name]} {name}"
                for name in resources[0]
                if values[side][name] > values[1 - side][name]
            ]
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


def test_invalid_action_that_ends_a_game_has_a_penalty() -> None:
    game = make_game("negotiation")
    game.reset(0)
    offer = "[Offer: 99 Ore -> 1 Wheat]"
    assert game.step({"first": offer})[1] == {"first": 0.0, "second": 0.0}, "asked again"
    _, paid, is_over, _, parts = game.step({"first": offer})
    assert (paid, is_over) == ({"first": -1.0, "second": 0.0}, True)
    assert parts["joint"] == 0.0


def play_all(game: TextGame, moves: list[Mapping[str, str]]) -> Iterator[tuple[float, dict[str, float]]]:
    """Yield the probability and the total rewards of uniform play over listed answers, for all games of a seed."""
    game.reset(0)
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


def test_responses_are_imported_and_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_game("negotiation")
    file, target = tmp_path / "answers.jsonl", tmp_path / "result.json"
    run("prompts", "negotiation", f"to={file}", "seeds=1")
    rows, loaded = [json.loads(line) for line in file.read_text().splitlines()], load_rows("negotiation", "team", 0)
    assert rows[0]["actions"]["first"][0] == "[Offer: 1 Wheat -> 1 Wood]"
    for row in rows:
        responses = play_valid_responses(loaded, row["row"], random.Random(row["row"]))
        row["responses"] = [[agent, "[Deny]"] for agent, _ in responses]
    file.write_text(
        "".join(json.dumps({key: row[key] for key in ("version", "seed", "row", "responses")}) + "\n" for row in rows)
    )
    run("import", str(file), "task=negotiation", "entry=no_deal", f"to={target}")
    assert [found.score for found in read_result(target).runs] == [0.0]
    run("table", str(target))
    assert "is not checked" not in capsys.readouterr().out
    monkeypatch.setattr("ippo_cli.benchmark.replay.find_spec", lambda _: None)
    run("table", str(target))
    shown = capsys.readouterr().out
    assert f"version={rows[0]['version']} of negotiation is not checked without textarena; pip install" in shown
    assert "no_deal  other" in shown


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
