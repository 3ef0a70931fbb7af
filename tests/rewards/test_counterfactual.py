"""Counterfactual baselines: games computed by hand, and slow reference implementations."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import torch
from spoken import episode, spoken_once

from ippo_cli.config.errors import RewardError
from ippo_cli.config.schema import CreditAssignment, Processor
from ippo_cli.rewards.baselines import Baseline
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.counterfactual import (
    blank_answers,
    fold_extra_turns,
    gather_answers,
    other_episodes_baseline,
    recombined_baseline,
    replace_answer,
)
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.score import ScoreResult, compute_raw_scores, process_scores
from ippo_cli.types import Completion, Episode

Make = Callable[..., Any]
AGENTS = ["row", "column"]
GAME = {"aa": 4.0, "ab": 0.0, "ba": 1.0, "bb": 2.0}


def game(episodes: Sequence[Episode]) -> Reward:
    """The team's reward from the table of both answers."""
    message = ["".join(turn.completion.text for turn in one.turns) for one in episodes]
    return Reward(team=[GAME[text] for text in message])


def rider(episodes: Sequence[Episode]) -> Reward:
    """A reward that does not depend on `column`."""
    return Reward(team=[float(one.turns_of_agent("row")[0].completion.text == "a") for one in episodes])


def played(row: str, column: str) -> list[Episode]:
    return spoken_once([{}] * len(row), {"row": list(row), "column": list(column)})


def learnt(
    reward: Any, episodes: Sequence[Episode], baselines: dict[str, Baseline], config: Any, how: CreditAssignment
) -> ScoreResult:
    own = compute_raw_scores(reward, episodes, dict.fromkeys(AGENTS, config), AGENTS, config)
    moments = {name: ScoreMoments() for name in AGENTS}
    return process_scores(own, episodes, config, moments, {how: baselines})


def by_difference(reward: Any, episodes: list[Episode], others: dict[str, list[Episode]], config: Any) -> ScoreResult:
    baselines = {
        name: other_episodes_baseline(reward, episodes, others[name], name, dict.fromkeys(AGENTS, config), config)
        for name in AGENTS
    }
    return learnt(reward, episodes, baselines, config, CreditAssignment.difference)


def by_recombination(reward: Any, episodes: list[Episode], generations: int, config: Any) -> ScoreResult:
    answers = gather_answers(episodes, generations)
    baselines = {
        name: recombined_baseline(reward, episodes, answers, generations, name, dict.fromkeys(AGENTS, config), config)
        for name in AGENTS
    }
    return learnt(reward, episodes, baselines, config, CreditAssignment.counterfactual)


def test_difference_rewards_of_matrix_game(settings: Make) -> None:
    config = settings(credit_assignment=CreditAssignment.difference)
    # The initial policies answer b b a (`row`) and b a a (`column`).
    others = {"row": played("bba", "aba"), "column": played("aab", "baa")}
    scores = by_difference(game, played("aab", "aba"), others, config).scores
    assert scores["row"].score[:, 0].tolist() == [4 - 1, 0 - 2, 1 - 4]
    assert scores["column"].score[:, 0].tolist() == [4 - 0, 0 - 4, 1 - 1]
    for own in scores.values():
        assert own.raw[:, 0].tolist() == [4, 0, 1]  # the logged score is the reward
        assert torch.equal(own.credit["difference"], own.score)


def test_agent_without_effect_has_zero_credit(settings: Make) -> None:
    texts = ("aabb", "abab")
    others = {"row": played("baba", "abab"), "column": played("aabb", "bbbb")}
    config = settings(credit_assignment=CreditAssignment.difference)
    difference = by_difference(rider, played(*texts), others, config)
    config = settings(credit_assignment=CreditAssignment.counterfactual)
    counterfactual = by_recombination(rider, played(*texts), 4, config)
    for found in (difference, counterfactual):
        assert found.scores["column"].score.tolist() == [[0.0]] * 4
        assert found.scores["column"].raw[:, 0].tolist() == [1, 1, 0, 0]
        assert bool(found.scores["row"].score.any())


def test_counterfactual_credit_of_matrix_game(settings: Make) -> None:
    config = settings(credit_assignment=CreditAssignment.counterfactual)
    scores = by_recombination(game, played("aab", "aba"), 3, config).scores
    # `row` answered a with a; its answers in the other episodes are a and b: 4 - (4 + 1) / 2.
    assert scores["row"].score[:, 0].tolist() == [4 - (4 + 1) / 2, 0 - (0 + 2) / 2, 1 - (4 + 4) / 2]
    assert scores["column"].score[:, 0].tolist() == [4 - (0 + 4) / 2, 0 - (4 + 4) / 2, 1 - (1 + 2) / 2]


def test_recombined_baseline_matches_reference(settings: Make) -> None:
    source = random.Random(5)
    agents = ["one", "two", "three"]
    for generations in (2, 3, 5):
        prompts = 4
        texts = {name: source.choices(["", "x", "y", "zz"], k=prompts * generations) for name in agents}
        examples = [{"prompt": row // generations} for row in range(prompts * generations)]
        episodes = spoken_once(examples, texts)
        paid = {}

        def worth(prompt: int, *result: str, paid: dict[Any, float] = paid) -> float:
            return paid.setdefault((prompt, *result), source.uniform(-1, 1))

        def reward(episodes: Sequence[Episode], worth: Any = worth) -> Reward:
            return Reward(
                team=[worth(one.example["prompt"], *(turn.completion.text for turn in one.turns)) for one in episodes]
            )

        answers = gather_answers(episodes, generations)
        for place, name in enumerate(agents):
            baseline = recombined_baseline(
                reward, episodes, answers, generations, name, dict.fromkeys(agents, settings()), settings()
            )
            expected = []
            for row in range(len(episodes)):
                first = row - row % generations
                others = []
                for other in set(range(first, first + generations)) - {row}:
                    actual = [texts[agent][row] for agent in agents]
                    actual[place] = texts[name][other]
                    others.append(worth(row // generations, *actual))
                expected.append(fmean(others))
            assert baseline.numbers[:, 0].tolist() == pytest.approx(expected, abs=1e-6)
            assert baseline.known.all()


def test_equal_answers_are_scored_once(settings: Make) -> None:
    asked: list[Episode] = []

    def reward(episodes: Sequence[Episode]) -> Reward:
        asked.extend(episodes)
        return game(episodes)

    episodes = played("aaab", "abab")
    baseline = recombined_baseline(
        reward, episodes, gather_answers(episodes, 4), 4, "row", dict.fromkeys(AGENTS, settings()), settings()
    )
    assert len(asked) == 2 + 2 + 2 + 1
    assert baseline.numbers[:, 0].tolist() == pytest.approx([(4 + 4 + 1) / 3, (0 + 0 + 2) / 3, (4 + 4 + 1) / 3, 0.0])


def test_leave_out_uses_empty_answers(settings: Make) -> None:
    def lengths(episodes: Sequence[Episode]) -> Reward:
        return Reward(team=[float(sum(len(turn.completion.text) for turn in one.turns)) for one in episodes])

    episodes = spoken_once([{}] * 2, {"row": ["abc", ""], "column": ["x", "yz"]})
    found = {
        name: other_episodes_baseline(
            lengths,
            episodes,
            [blank_answers(one, name) for one in episodes],
            name,
            dict.fromkeys(AGENTS, settings()),
            settings(),
        )
        for name in AGENTS
    }
    config = settings(credit_assignment=CreditAssignment.leave_out)
    scores = learnt(lengths, episodes, found, config, CreditAssignment.leave_out).scores
    assert {name: own.score[:, 0].tolist() for name, own in scores.items()} == {"row": [3, 0], "column": [1, 2]}


def test_processors_run_after_baseline_subtraction(settings: Make) -> None:
    config = settings(credit_assignment=CreditAssignment.difference, processor=[Processor.scale], scale=10.0)
    others = {"row": played("ba", "aa"), "column": played("aa", "bb")}
    scores = by_difference(game, played("aa", "aa"), others, config).scores
    assert scores["row"].score[:, 0].tolist() == [30, 0]
    assert scores["row"].credit["difference"][:, 0].tolist() == [3, 0]


def test_logged_credit_does_not_change_scores(settings: Make) -> None:
    others = {"row": played("ba", "aa"), "column": played("aa", "bb")}
    episodes = played("aa", "aa")
    plain = process_scores(
        compute_raw_scores(game, episodes, dict.fromkeys(AGENTS, settings()), AGENTS, settings()),
        episodes,
        settings(),
        dict.fromkeys(AGENTS, ScoreMoments()),
    ).scores
    scores = by_difference(game, episodes, others, settings(failure_budget=0.0)).scores
    for name in AGENTS:
        assert torch.equal(scores[name].score, plain[name].score)
        assert scores[name].score is scores[name].raw
    assert scores["row"].credit["difference"][:, 0].tolist() == [3, 0]
    assert plain["row"].credit == {}


def test_row_without_baseline_fails(settings: Make) -> None:
    broken = [played("b", "a")[0], replace(played("b", "a")[0], failure=ValueError("the board is gone"))]
    others = {"row": broken, "column": played("aa", "bb")}
    config = settings(credit_assignment=CreditAssignment.difference, failure_budget=0.5)
    found = by_difference(game, played("aa", "aa"), others, config)
    assert found.scores["row"].failed.tolist() == [False, True]
    assert found.scores["row"].valid.tolist() == [True, False]
    assert found.scores["row"].score[:, 0].tolist() == [3, 0]
    assert found.scores["row"].credit["difference"].isnan().tolist() == [[False], [True]]
    assert found.scores["column"].valid.all()  # its baseline is known
    assert found.failure is not None
    assert "the board is gone" in found.failure
    with pytest.raises(RewardError, match="the board is gone"):
        by_difference(game, played("aa", "aa"), others, replace(config, failure_budget=0.4))
    measured = by_difference(game, played("aa", "aa"), others, settings(failure_budget=0.0))
    assert measured.failure is None
    assert measured.scores["row"].valid.all()


def test_row_without_scored_alternatives_has_no_baseline(settings: Make) -> None:
    def picky(episodes: Sequence[Episode]) -> Reward:
        numbers = game(episodes).team
        assert numbers is not None
        return Reward(team=numbers, valid=[one.turns_of_agent("row")[0].completion.text != "b" for one in episodes])

    episodes = played("abba", "aaaa")
    episodes[3] = replace(episodes[3], failure=ValueError("lost"), turns=[])
    baseline = recombined_baseline(
        picky, episodes, gather_answers(episodes, 2), 2, "row", dict.fromkeys(AGENTS, settings()), settings()
    )
    assert baseline.known.tolist() == [False, True, False, False]
    assert baseline.numbers[1].tolist() == [4]


def test_replaced_answer_keeps_its_cut_flag() -> None:
    (one,) = played("a", "b")
    one = replace(one, unfinished=frozenset({"row", "column"}))
    other = replace(one.turns_of_agent("row")[0].completion, text="longer", finished=True)
    new = replace_answer(one, "row", (other, False))
    assert new.unfinished == {"column"}
    assert [turn.completion.text for turn in new.turns] == ["longer", "b"]
    assert [turn.completion.text for turn in one.turns] == ["a", "b"]
    assert replace_answer(new, "row", (one.turns_of_agent("row")[0].completion, True)).unfinished == {"row", "column"}


def test_extra_turns_of_other_episodes_are_folded(
    settings: Make,
) -> None:
    def paid(episodes: Sequence[Episode]) -> Reward:
        return Reward(
            agent_by_turn={
                name: [[float(turn.completion.text) for turn in one.turns_of_agent(name)] for one in episodes]
                for name in AGENTS
            }
        )

    config = settings(team_weight=0.0, agent_weight=1.0)
    here = [episode(("row", 0, "1"), ("row", 1, "2")), episode(("row", 0, "5"), ("row", 1, "6"), ("row", 2, "7"))]
    there = [
        episode(("row", 0, "10"), ("row", 1, "20"), ("row", 2, "30"), ("row", 3, "40")),
        episode(("row", 0, "50")),
    ]
    baseline = other_episodes_baseline(paid, here, there, "row", dict.fromkeys(AGENTS, config), config)
    assert baseline.numbers.tolist() == [[10, 90, 0], [50, 0, 0]]
    assert fold_extra_turns(torch.tensor([[1.0, 2.0]]), torch.tensor([0])).tolist() == [[3.0]]


def test_agent_without_turns_has_no_credit(settings: Make) -> None:
    silent_row = [episode(("row", 0, "a"), index=0), episode(("row", 0, "a"), ("column", 0, "a"), index=1)]
    broken = [replace(one, failure=ValueError("gone")) for one in silent_row]
    others = {"row": silent_row, "column": broken}

    def ones(episodes: Sequence[Episode]) -> Reward:
        return Reward(team=[1.0] * len(episodes))

    found = by_difference(ones, silent_row, others, settings(credit_assignment=CreditAssignment.difference))
    assert found.scores["column"].failed.tolist() == [False, True]
    assert found.scores["column"].credit["difference"].isnan().all()
    assert found.scores["row"].score.tolist() == [[0.0], [0.0]]


def test_distinct_answers_by_tokens_and_ending(settings: Make) -> None:
    counts: list[int] = []

    def reward(episodes: Sequence[Episode]) -> Reward:
        counts.append(len(episodes))
        return Reward(team=[0.0] * len(episodes))

    def make_completion(ids: list[int], finished: bool) -> Completion:
        none = torch.zeros(len(ids))
        return Completion(ids=torch.tensor(ids), logprobs=none, behavior_logprobs=none, text="a", finished=finished)

    episodes = played("aaa", "aaa")
    for row, completion in enumerate(
        (make_completion([1], True), make_completion([2], True), make_completion([2], False))
    ):
        episodes[row] = replace_answer(episodes[row], "row", (completion, not completion.finished))
    recombined_baseline(
        reward, episodes, gather_answers(episodes, 3), 3, "row", dict.fromkeys(AGENTS, settings()), settings()
    )
    assert counts == [6]
