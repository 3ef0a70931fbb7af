"""Counterfactual baselines for credit assignment: the score with an agent's responses replaced.

`difference`: the agent's initial policy generates its turns and the episode is replayed (Wolpert and Tumer 2002,
"Optimal payoff functions for members of collectives"). `leave_out`: its responses are empty. `counterfactual`: its
responses to the same prompt in the other episodes replace its own (COMA's baseline, Foerster et al. 2018,
arXiv 1705.08926, with samples instead of a critic). The last two keep the other agents' responses unchanged, so they
require tasks in which no agent observes another agent's response.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ippo_cli.config.schema import RewardConfig
from ippo_cli.engine import distributed
from ippo_cli.rewards.baselines import Baseline
from ippo_cli.rewards.contract import RewardFunction
from ippo_cli.rewards.score import Weights, compute_raw_scores, turn_counts
from ippo_cli.types import Completion, Episode

EMPTY = torch.zeros(0)
Answer = tuple[Completion, bool]  # an agent's completion in an episode, and whether the episode was cut for this agent
Answers = Mapping[int, Mapping[str, Answer]]  # by sample index and agent


def other_episodes_baseline(
    reward: RewardFunction,
    episodes: Sequence[Episode],
    others: Sequence[Episode],
    agent: str,
    weights: Weights,
    config: RewardConfig,
) -> Baseline:
    """The agent's scores by turn in `others`, which has one replayed episode for each of `episodes`.

    Scores of turns beyond the agent's last turn in the original episode are added to that last turn.
    """
    found = compute_raw_scores(reward, others, weights, [agent], config)
    known = ~found.failed[agent]
    numbers = found.numbers[agent].where(known[:, None], 0.0)
    return Baseline(numbers=fold_extra_turns(numbers, turn_counts(episodes, agent)), known=known, failure=found.failure)


def blank_answers(episode: Episode, agent: str) -> Episode:
    """The episode with empty completions of one agent."""
    empty = Completion(ids=EMPTY.long(), logprobs=EMPTY, behavior_logprobs=EMPTY, text="", finished=True)
    return replace_answer(episode, agent, (empty, False))


def recombined_baseline(
    reward: RewardFunction,
    episodes: Sequence[Episode],
    answers: Answers,
    num_generations: int,
    agent: str,
    weights: Weights,
    config: RewardConfig,
) -> Baseline:
    """The mean score over the agent's answers to the same prompt in the other episodes, without its own answer:

        b_i^g = 1 / (n - 1) * sum over h != g of R(a_i^h, a_-i^g)

    Including its own answer would only scale the credit by (n - 1) / n. Equal answers are scored once. Answers without
    a score are excluded; `known` is False for rows without any scored answer.
    """
    others: list[Episode] = []
    rows: list[int] = []
    counts: list[int] = []
    for row, episode in enumerate(episodes):
        for answer, count in _count_distinct(_answers_in_other_episodes(episode, answers, num_generations, agent)):
            others.append(replace_answer(episode, agent, answer))
            rows.append(row)
            counts.append(count)
    found = compute_raw_scores(reward, others, weights, [agent], config)
    known = ~found.failed[agent]
    times = torch.tensor(counts, dtype=torch.float64) * known
    place = torch.tensor(rows, dtype=torch.long)
    numbers = found.numbers[agent].double().where(known[:, None], 0.0) * times[:, None]
    sums = torch.zeros(len(episodes), numbers.shape[1], dtype=torch.float64).index_add_(0, place, numbers)
    total = torch.zeros(len(episodes), dtype=torch.float64).index_add_(0, place, times)
    means = (sums / total.clamp(min=1)[:, None]).float()
    return Baseline(numbers=means, known=total > 0, failure=found.failure)


def gather_answers(episodes: Sequence[Episode], num_generations: int) -> Answers:
    """All ranks' answers to the prompts of this rank's one-turn episodes. Collective.

    Only answers to prompts with episodes on several ranks are sent.
    """
    here = {episode.index: _answers_by_agent(episode) for episode in episodes if episode.failure is None}
    sizes: dict[int, int] = {}
    for episode in episodes:
        group = episode.index // num_generations
        sizes[group] = sizes.get(group, 0) + 1
    split_groups = {
        index: answers for index, answers in here.items() if sizes[index // num_generations] < num_generations
    }
    for remote in distributed.gather_objects(split_groups):
        here |= remote
    return here


def replace_answer(episode: Episode, agent: str, answer: Answer) -> Episode:
    """The episode with one agent's answer replaced."""
    completion, cut = answer
    turns = [replace(turn, completion=completion) if turn.agent == agent else turn for turn in episode.turns]
    return replace(episode, turns=turns, unfinished=episode.unfinished - {agent} | ({agent} if cut else set()))


def fold_extra_turns(numbers: Tensor, num_turns: Tensor) -> Tensor:
    """Numbers by turn `[B, K']` for rows of `num_turns` `[B]` turns; extra turns are added to the row's last turn."""
    width = max(1, int(num_turns.max())) if len(num_turns) else 1
    turn = torch.arange(numbers.shape[1]).minimum((num_turns - 1).clamp(min=0)[:, None])
    return torch.zeros(len(numbers), width, dtype=numbers.dtype).scatter_add(1, turn, numbers)


def _answers_by_agent(episode: Episode) -> dict[str, Answer]:
    return {turn.agent: (turn.completion, turn.agent in episode.unfinished) for turn in episode.turns}


def _answers_in_other_episodes(
    episode: Episode, answers: Answers, num_generations: int, agent: str
) -> Iterable[Answer]:
    """The agent's answers to the same prompt in the other episodes."""
    first = episode.index - episode.index % num_generations
    for index in range(first, first + num_generations):
        if index != episode.index and agent in answers.get(index, {}):
            yield answers[index][agent]


def _count_distinct(answers: Iterable[Answer]) -> Iterable[tuple[Answer, int]]:
    """Each distinct answer with its number of occurrences."""
    counted: dict[tuple[object, ...], tuple[Answer, int]] = {}
    for answer in answers:
        completion, cut = answer
        key = (completion.text, completion.finished, cut, *completion.ids.tolist())
        counted[key] = answer, counted.get(key, (answer, 0))[1] + 1
    return counted.values()
