"""Rows with all candidates of an agent's turns, and the returns of the candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.nn.functional import pad

from ippo_cli.agents.team import Team
from ippo_cli.algorithms.estimator import Estimator, RowContext
from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs
from ippo_cli.config.schema import Config, FollowedCandidate
from ippo_cli.engine import distributed
from ippo_cli.formulas import group_normalized
from ippo_cli.planning.agent_shapes import AgentShapes
from ippo_cli.planning.method_plan import MethodPlan
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.rewards.contract import RewardFunction
from ippo_cli.rollout.branches import BranchEpisodes, State
from ippo_cli.rollout.continuations import collect_continuations
from ippo_cli.rollout.turn_groups import CandidateGroup, PlayBranches, branch_episodes
from ippo_cli.tasks.task import max_turns_by_agent
from ippo_cli.training.methods.continued_returns import episode_returns, state_columns
from ippo_cli.training.methods.method import Buffer, FurtherTurns, Method, Outcome, Player, ScoredBuffer
from ippo_cli.training.targets import Algorithm
from ippo_cli.types import Episode, Experience, Scores, Turn, TurnGroups


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRows:
    """The candidates of one agent: further turns of its rows, and the groups of all turns."""

    further: FurtherTurns  # the candidates that are not the episode's
    groups: TurnGroups

    def widen(self, scores: Scores) -> Scores:
        """The scores with a column for every turn; 0 for candidates."""
        columns = self.groups.returns.shape[1] - scores.score.shape[1]
        if columns <= 0:
            return scores
        wider = (0, columns)
        raw = pad(scores.raw, wider)
        return replace(
            scores,
            score=raw if scores.score is scores.raw else pad(scores.score, wider),
            raw=raw,
            measured=pad(scores.measured, wider, value=True),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateBuffer:
    """An iteration's episodes with candidates."""

    episodes: list[Episode]
    rows: dict[str, CandidateRows]  # by agent
    num_tokens: int  # generated in branches, over all ranks


class TurnCandidates(Method):
    """Samples several responses at every turn of trained agents, and compares them with each other."""

    def __init__(self) -> None:
        self._candidates = CandidateBuffer(episodes=[], rows={}, num_tokens=0)

    def revise(self, player: Player, buffer: Buffer, clock: Stopwatch) -> Buffer:
        def play(episodes: Sequence[Episode], states: Sequence[State], count: int) -> BranchEpisodes:
            player.preemption.raise_if_any_rank_requested()
            return collect_continuations(
                player.environments,
                player.formats,
                episodes,
                states,
                count,
                player.generator,
                buffer.prompts.draws,
                keeps_other_actions=True,
            )

        with clock("rollout"):
            self._candidates = collect_candidates(
                player.config, player.team, player.rewards.interruptible, buffer.episodes, play, player.device
            )
        episodes = self._candidates.episodes
        if player.config.algorithm.turn_groups.follow is FollowedCandidate.best:
            with clock("score"):
                rewarded = player.rewards.call(episodes)
        else:
            rewarded = replace(buffer.rewarded, episodes=episodes)
        further = {name: rows.further for name, rows in self._candidates.rows.items()}
        return replace(buffer, rewarded=rewarded, further=further)

    def extend(self, player: Player, scored: ScoredBuffer, clock: Stopwatch) -> Experience:
        experience, rows = scored.experience, self._candidates.rows
        return replace(
            experience,
            scores={name: rows[name].widen(own) if name in rows else own for name, own in experience.scores.items()},
            turn_groups={name: own.groups for name, own in rows.items()},
        )

    def metrics(self, outcome: Outcome) -> dict[str, float]:
        return {"turn_groups/branch_tokens": float(self._candidates.num_tokens)}


class TurnGroupEstimator(Estimator):
    """Compares each turn's return with those of the other responses to the same state.

    Turns without a usable return are excluded; a turn that remains alone in its group has no advantage.
    """

    name = "turn_group"

    def prepare(self, inputs: AdvantageInputs, rows: RowContext) -> AdvantageInputs:
        return replace(inputs, turn_groups=rows.experience.turn_groups.get(rows.source.agent))

    def estimate_rows(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        assert inputs.turn_groups is not None
        returns, label = inputs.turn_groups.returns, inputs.turn_groups.label
        usable = (label >= 0) & returns.isfinite() & inputs.valid[:, None]
        _, slots = torch.unique(label, return_inverse=True)
        sizes = torch.zeros_like(slots.flatten()).scatter_add(0, slots.flatten(), usable.long().flatten())
        usable &= sizes[slots] > 1
        advantages = torch.zeros_like(returns)
        advantages[usable] = group_normalized(
            returns[usable], label[usable], scale_by_std=bool(self.config.scale_by_std)
        )
        turn = inputs.turn.clamp(min=0)
        tokens = usable.gather(1, turn) & inputs.mask
        return AdvantageOutputs(
            advantages=torch.where(tokens, advantages.gather(1, turn), 0.0),
            returns=torch.where(tokens, returns.gather(1, turn), 0.0),
            usable=inputs.valid & usable.any(dim=1),
            usable_tokens=tokens,
        )


def collect_candidates(
    config: Config,
    team: Team,
    reward: RewardFunction,
    episodes: Sequence[Episode],
    play: PlayBranches,
    device: torch.device,
) -> CandidateBuffer:
    """Sample candidates at every turn of the trained agents, and value them by the returns of training. Collective."""
    algorithm, settings = Algorithm.from_config(config, config.seed), config.algorithm.turn_groups

    def value_states(agent: str, episodes: Sequence[Episode], states: Sequence[State]) -> list[float]:
        returns, valid, rollout = episode_returns(
            config, algorithm, team[agent], reward, episodes, is_by_turn=True, device=device
        )
        rows = torch.arange(len(states), device=device)
        found = returns[rows, state_columns(rollout, states, range(len(states)))].double()
        return found.where(valid[: len(states)], torch.nan).tolist()

    branched = branch_episodes(
        episodes,
        list(team),
        settings.candidates,
        play,
        value_states,
        follows_best=settings.follow is FollowedCandidate.best,
    )
    build = partial(build_rows, branched.episodes, branched.groups, min_number=config.tracker.turns, device=device)
    num_tokens = int(distributed.all_sum(torch.tensor(branched.num_tokens)))
    return CandidateBuffer(episodes=branched.episodes, rows={name: build(name) for name in team}, num_tokens=num_tokens)


def build_rows(
    episodes: Sequence[Episode],
    groups: Sequence[CandidateGroup],
    agent: str,
    *,
    min_number: int,
    device: torch.device,
) -> CandidateRows:
    """An agent's candidates, by row. Collective.

    `min_number`: smallest turn number of candidates that are not in the episode, above those of turns with metrics.
    """
    own_turns = [episode.trainable_turns(agent) for episode in episodes]
    first = max(distributed.gather_objects(max([min_number, *map(len, own_turns)])))
    turns: list[list[Turn]] = [[] for _ in episodes]
    entries: list[tuple[int, int, int, float]] = []  # row, turn, label and return of each candidate
    for label, group in enumerate(groups):
        if group.state.agent != agent:
            continue
        row = group.state.episode
        for turn, number in zip(group.turns, group.returns, strict=True):
            place = group.state.turn
            # A branch that was followed replays the same completion.
            if place >= len(own_turns[row]) or own_turns[row][place].completion is not turn.completion:
                turns[row].append(turn)
                place = first + len(turns[row]) - 1
            entries.append((row, place, label, number))
    width = max(distributed.gather_objects(first + max(map(len, turns), default=0)))
    found = TurnGroups(
        returns=torch.full((len(episodes), max(width, 1)), torch.nan),
        label=torch.full((len(episodes), max(width, 1)), -1, dtype=torch.long),
    )
    for row, place, label, number in entries:
        found.returns[row, place], found.label[row, place] = number, label
    found = TurnGroups(returns=found.returns.to(device), label=found.label.to(device))
    return CandidateRows(further=FurtherTurns(first_number=first, turns=turns), groups=found)


class TurnGroupPlan(MethodPlan):
    """The additional episodes of an iteration for candidates of turns."""

    def describe(self, shapes: Mapping[str, AgentShapes]) -> Iterator[tuple[str, str]]:
        if self.config.algorithm.turn_groups.candidates > 1:
            yield "turn groups", _turn_group_cost(self.config)


def _turn_group_cost(config: Config) -> str:
    """The additional episodes per iteration for candidates of turns."""
    branches, size = config.algorithm.turn_groups.branches, config.rollout.buffer_size
    limits = max_turns_by_agent(config.task)
    turns = [limits[name] for name, agent in config.task.agents.items() if not agent.frozen]
    known = [limit for limit in turns if limit is not None]
    if len(known) < len(turns):
        return f"{branches} more episodes for each turn of each of {size} episodes, from the turn to the end"
    total = sum(known)
    return (
        f"up to {total} turns x {branches} x {size} = {total * branches * size} more episodes, each from its turn to "
        "the end"
    )
