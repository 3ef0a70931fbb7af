"""`algorithm.advantage=turn_group` (AT-GRPO): compares several responses to the state of each turn with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import pad

from ippo_cli.algorithms.advantage_method import AdvantageMethod
from ippo_cli.algorithms.estimator import State
from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs, Source
from ippo_cli.config.constraints import Range
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.needs import Need
from ippo_cli.config.schema import Config
from ippo_cli.engine import distributed
from ippo_cli.formulas import group_normalized
from ippo_cli.lab.turn_branches import CandidateGroup, PlayBranches, branch_episodes
from ippo_cli.planning.agent_shapes import AgentShapes
from ippo_cli.planning.method_plan import MethodPlan
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.rollout import branches
from ippo_cli.rollout.continuations import collect_continuations
from ippo_cli.tasks.task import max_turns_by_agent
from ippo_cli.training.methods.continued_returns import ReturnSource, state_columns
from ippo_cli.training.methods.method import Buffer, FurtherTurns, Method, Outcome, Player, ScoredBuffer
from ippo_cli.training.targets import Algorithm
from ippo_cli.types import Episode, Experience, Scores, Turn


class FollowedCandidate(str, Enum):
    random = "random"
    best = "best"


@dataclass
class Keys:
    """Keys of the candidates."""

    candidates: Annotated[int, Range(2)] = 4  # responses per state, the episode's own included
    follow: FollowedCandidate = FollowedCandidate.random
    # response from which the episode continues: random | best (by return)

    @property
    def branches(self) -> int:
        """Episodes that a turn adds: one for each candidate, except for the random one that continues the episode."""
        return self.candidates - (self.follow is FollowedCandidate.random)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnGroups:
    """Groups of an agent's turns that answer the same state, by row and turn."""

    returns: Tensor  # [B, K] float32: return from the turn on; NaN where unknown
    label: Tensor  # [B, K] int64: number of the group, -1 for turns without one


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


class TurnGroup(AdvantageMethod):
    """Compares each turn's return with those of the other responses to the same state.

    Turns without a usable return are excluded; a turn that remains alone in its group has no advantage.
    """

    name = "turn_group"
    Keys = Keys
    METRICS = {  # noqa: RUF012
        "turn_groups/branch_tokens": "algorithm.advantage=turn_group: tokens generated in branches, beside those of "
        "the episodes",
    }
    needs = (
        Need.current_weights,
        Need.current_policies,
        Need.fixed_scores,
        Need.own_rows,
        Need.equal_scores,
        Need.no_critic,
    )
    takes = {Need.one_candidate: "puts candidates of several episodes into a row"}  # noqa: RUF012
    reads = {"credit": "token", "gamma": "1.0", "scale_by_std": "true (GRPO) or false"}  # noqa: RUF012
    keys: Keys

    def check(self, config: Config) -> Iterator[ConfigError]:
        if config.reward.measure_credit_every and self.keys.follow is FollowedCandidate.best:
            yield ConfigError(
                f"reward.measure_credit_every={config.reward.measure_credit_every}",
                "does not support algorithm.advantage=turn_group: it measures episodes that are selected by their "
                "returns with algorithm.advantage_args.follow=best",
                "use 0, or follow=random",
            )
        if config.task.kind == "program":
            yield ConfigError(
                "task=program",
                "does not support algorithm.advantage=turn_group: it runs programs that cannot be continued from a "
                "state",
                "use a task with turns",
            )

    def build_method(self, config: Config, algorithm: Algorithm) -> Method:
        return TurnCandidates(self.keys, algorithm)

    def build_plan(self, config: Config) -> MethodPlan:
        return TurnGroupPlan(config, self.keys)

    def estimate(
        self, inputs: Mapping[Source, AdvantageInputs], experience: Experience, state: State
    ) -> tuple[dict[Source, AdvantageOutputs], State]:
        groups: Mapping[str, TurnGroups] = experience.additions[self.name]
        scales = bool(self.config.scale_by_std)
        return {
            source: compare_candidates(own, groups[source.agent], scale_by_std=scales) for source, own in inputs.items()
        }, state


def compare_candidates(inputs: AdvantageInputs, groups: TurnGroups, *, scale_by_std: bool) -> AdvantageOutputs:
    """The return of each turn, minus the mean over the candidates of its state."""
    returns, label = groups.returns, groups.label
    usable = (label >= 0) & returns.isfinite() & inputs.valid[:, None]
    _, slots = torch.unique(label, return_inverse=True)
    sizes = torch.zeros_like(slots.flatten()).scatter_add(0, slots.flatten(), usable.long().flatten())
    usable &= sizes[slots] > 1
    advantages = torch.zeros_like(returns)
    advantages[usable] = group_normalized(returns[usable], label[usable], scale_by_std=scale_by_std)
    turn = inputs.turn.clamp(min=0)
    tokens = usable.gather(1, turn) & inputs.mask
    return AdvantageOutputs(
        advantages=torch.where(tokens, advantages.gather(1, turn), 0.0),
        returns=torch.where(tokens, returns.gather(1, turn), 0.0),
        usable=inputs.valid & usable.any(dim=1),
        usable_tokens=tokens,
    )


class TurnCandidates(Method):
    """Samples several responses at every turn of trained agents."""

    def __init__(self, keys: Keys, algorithm: Algorithm) -> None:
        self._keys, self._algorithm = keys, algorithm
        self._candidates = CandidateBuffer(episodes=[], rows={}, num_tokens=0)

    def revise(self, player: Player, buffer: Buffer, clock: Stopwatch) -> Buffer:
        def play(episodes: Sequence[Episode], states: Sequence[branches.State], count: int) -> branches.BranchEpisodes:
            player.preemption.raise_if_any_rank_requested()
            return collect_continuations(
                lambda batch, generator: player.play_episodes(batch, buffer.prompts.draws, generator=generator),
                player.generator,
                episodes,
                states,
                count,
                keeps_other_actions=True,
            )

        with clock("rollout"):
            self._candidates = self._collect(player, buffer.episodes, play)
        episodes = self._candidates.episodes
        if self._keys.follow is FollowedCandidate.best:
            with clock("score"):
                rewarded = player.rewards.call(episodes)
        else:
            rewarded = replace(buffer.rewarded, episodes=episodes)
        further = {name: rows.further for name, rows in self._candidates.rows.items()}
        return replace(buffer, rewarded=rewarded, further=further)

    def _collect(self, player: Player, episodes: Sequence[Episode], play: PlayBranches) -> CandidateBuffer:
        """Sample candidates at every turn of the trained agents, and value them by the returns of training."""
        config, team, device = player.config, player.team, player.device

        def value_states(agent: str, episodes: Sequence[Episode], states: Sequence[branches.State]) -> list[float]:
            source = ReturnSource(
                config=config,
                algorithm=self._algorithm,
                agent=team[agent],
                reward=player.rewards.interruptible,
                is_by_turn=True,
                device=device,
            )
            returns, valid, rollout = source.episode_returns(episodes)
            rows = torch.arange(len(states), device=device)
            found = returns[rows, state_columns(rollout, states, range(len(states)))].double()
            return found.where(valid[: len(states)], torch.nan).tolist()

        branched = branch_episodes(
            episodes,
            list(team),
            self._keys.candidates,
            play,
            value_states,
            follows_best=self._keys.follow is FollowedCandidate.best,
        )
        build = partial(build_rows, branched.episodes, branched.groups, min_number=config.tracker.turns, device=device)
        num_tokens = int(distributed.all_sum(torch.tensor(branched.num_tokens)))
        rows = {name: build(name) for name in team}
        return CandidateBuffer(episodes=branched.episodes, rows=rows, num_tokens=num_tokens)

    def extend(self, player: Player, scored: ScoredBuffer, clock: Stopwatch) -> Experience:
        experience, rows = scored.experience, self._candidates.rows
        return replace(
            experience,
            scores={name: rows[name].widen(own) if name in rows else own for name, own in experience.scores.items()},
            additions={**experience.additions, TurnGroup.name: {name: own.groups for name, own in rows.items()}},
        )

    def metrics(self, outcome: Outcome) -> dict[str, float]:
        return {"turn_groups/branch_tokens": float(self._candidates.num_tokens)}


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

    def __init__(self, config: Config, keys: Keys) -> None:
        super().__init__(config)
        self._keys = keys

    def describe(self, shapes: Mapping[str, AgentShapes]) -> Iterator[tuple[str, str]]:
        branches, size = self._keys.branches, self.config.rollout.buffer_size
        limits = max_turns_by_agent(self.config.task)
        turns = [limits[name] for name, agent in self.config.task.agents.items() if not agent.frozen]
        known = [limit for limit in turns if limit is not None]
        if len(known) < len(turns):
            text = f"{branches} more episodes for each turn of each of {size} episodes, from the turn to the end"
        else:
            count = sum(known) * branches * size
            text = (
                f"up to {sum(known)} turns x {branches} x {size} = {count} more episodes, each from its turn to the end"
            )
        yield "turn groups", text
