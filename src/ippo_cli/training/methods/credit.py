"""Baselines for the credit assignment of each agent in an iteration, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from ippo_cli.config.credit import is_credit_iteration, is_replay_iteration, needs_replays, samples_alternatives
from ippo_cli.config.reward_weights import reward_weights
from ippo_cli.config.schema import Config, CreditAssignment
from ippo_cli.engine import distributed
from ippo_cli.planning.agent_shapes import AgentShapes
from ippo_cli.planning.method_plan import MethodPlan
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.rewards.alternative_turns import AlternativeEpisode, alternatives_baseline
from ippo_cli.rewards.baselines import CreditBaselines, TurnBaseline
from ippo_cli.rewards.contract import RewardFunction
from ippo_cli.rewards.counterfactual import blank_answers, gather_answers, other_episodes_baseline, recombined_baseline
from ippo_cli.rollout.alternatives import ORIGINAL, CounterfactualGenerator, collect_alternatives
from ippo_cli.rollout.branches import PlayEpisodes, State
from ippo_cli.rollout.generator import Generator
from ippo_cli.rollout.noise import uniforms
from ippo_cli.tasks.task import max_turns_by_agent
from ippo_cli.training.methods.method import Method, Player, Prompts
from ippo_cli.types import Batch, Episode


@dataclass(frozen=True, kw_only=True)
class EpisodeReplays:
    """Plays an iteration's episodes again with other turns, with the same random numbers elsewhere."""

    play: PlayEpisodes  # with the random stream of the episodes
    batch: Batch
    episodes: Sequence[Episode]
    purpose: str  # of their random numbers
    generator: Generator
    initial_generator: Generator | None  # samples from the initial policies; None if no replays need it

    def with_initial_policy(self, agent: str) -> list[Episode]:
        """The episodes with the turns of an agent from its initial policy. Collective."""
        assert self.initial_generator is not None
        generator = CounterfactualGenerator(self.generator, agent, self.initial_generator, self.episodes)
        return self.play(self.batch, generator)

    def with_alternatives(self, states: Sequence[State], count: int) -> list[AlternativeEpisode]:
        """The episodes with `count` alternatives to the turn of each state. Collective."""
        numbers = range(ORIGINAL + 1, ORIGINAL + 1 + count)
        played = collect_alternatives(self.play, self.generator, self.episodes, states, numbers)
        return [
            AlternativeEpisode(
                row=state.episode,
                turn=state.turn,
                number=number,
                episode=played.episodes[place * count + number],
                is_usable=not played.has_diverged[place * count + number],
            )
            for place, state in enumerate(states)
            for number in range(count)
        ]


class CreditMeasurement(Method):
    """Compares the scores of each trained agent with those of other turns in its place (`reward.credit_assignment`)."""

    def measure_baselines(
        self, player: Player, prompts: Prompts, episodes: Sequence[Episode], clock: Stopwatch
    ) -> CreditBaselines:
        if not is_credit_iteration(player.config, prompts.iteration):
            return {}

        def play(part: Batch, generator: Generator) -> list[Episode]:
            return player.play_episodes(part, prompts.draws, generator=generator)

        replays = EpisodeReplays(
            play=play,
            batch=prompts.batch,
            episodes=episodes,
            purpose=prompts.draws.purpose,
            generator=player.generator,
            initial_generator=player.initial_generator,
        )
        with clock("credit"):
            return compute_credit_baselines(
                player.config, prompts.iteration, player.rewards.interruptible, replays, list(player.team)
            )


def compute_credit_baselines(
    config: Config,
    iteration: int,
    reward: RewardFunction,
    replays: EpisodeReplays,
    trainable_agents: Sequence[str],
) -> CreditBaselines:
    """Baselines of the trainable agents: those used in training, and those that are only logged. Collective."""
    weights, settings, episodes = reward_weights(config), config.reward, replays.episodes
    baselines: CreditBaselines = {}
    if is_replay_iteration(config, iteration):
        baselines[CreditAssignment.difference] = {
            name: other_episodes_baseline(reward, episodes, replays.with_initial_policy(name), name, weights, settings)
            for name in trainable_agents
        }
    if settings.credit_assignment is CreditAssignment.leave_out:
        baselines[CreditAssignment.leave_out] = {
            name: other_episodes_baseline(
                reward, episodes, [blank_answers(episode, name) for episode in episodes], name, weights, settings
            )
            for name in trainable_agents
        }
    if samples_alternatives(config):
        baselines[CreditAssignment.counterfactual] = {
            name: _alternatives_baseline(config, reward, replays, name) for name in trainable_agents
        }
    elif settings.credit_assignment is CreditAssignment.counterfactual:
        generations = config.rollout.num_generations
        answers = gather_answers(episodes, generations)
        baselines[CreditAssignment.counterfactual] = {
            name: recombined_baseline(reward, episodes, answers, generations, name, weights, settings)
            for name in trainable_agents
        }
    return baselines


def _alternatives_baseline(config: Config, reward: RewardFunction, replays: EpisodeReplays, agent: str) -> TurnBaseline:
    count = config.reward.credit_alternatives
    assert count is not None
    states = select_turns(config, replays.episodes, agent, replays.purpose)
    return alternatives_baseline(
        reward,
        replays.episodes,
        replays.with_alternatives(states, count),
        count,
        agent,
        reward_weights(config),
        config.reward,
        gamma=1.0 if config.algorithm.gamma is None else config.algorithm.gamma,
    )


def select_turns(config: Config, episodes: Sequence[Episode], agent: str, purpose: str) -> list[State]:
    """The states before the turns of an agent that are measured: all, or at most `credit_turns` of each episode.

    With a limit, `credit_turns` of the numbers of turns that an episode may have are selected at random, and the
    episode's turns among them are measured: the length of an episode depends on actions, so a selection among its own
    turns would favour turns of short episodes. Without a limit on turns, the longest episode is the limit. Collective.
    """
    num_turns = [0 if episode.failure is not None else len(episode.trainable_turns(agent)) for episode in episodes]
    limit, count = max_turns_by_agent(config.task)[agent], config.reward.credit_turns
    if limit is None:
        limit = int(distributed.all_max(torch.tensor(max(num_turns, default=0))))
    if count is None or count >= limit:
        selected = [list(range(turns)) for turns in num_turns]
    else:
        index = torch.tensor([episode.index for episode in episodes], dtype=torch.long)
        order = uniforms(config.seed, f"{purpose}/credit/{agent}", index, limit).argsort(dim=1)
        selected = [
            sorted(turn for turn in row[:count] if turn < turns)
            for row, turns in zip(order.tolist(), num_turns, strict=True)
        ]
    return [
        State(episode=row, agent=agent, turn=turn, position=0) for row, turns in enumerate(selected) for turn in turns
    ]


class CreditPlan(MethodPlan):
    """The additional episodes of an iteration for credit assignment."""

    def describe(self, shapes: Mapping[str, AgentShapes]) -> Iterator[tuple[str, str]]:
        if (cost := _credit_cost(self.config)) is not None:
            yield "credit", cost


def _credit_cost(config: Config) -> str | None:
    """The additional episodes per iteration for credit assignment; None without it."""
    reward, size, agents = config.reward, config.rollout.buffer_size, len(config.task.agents)
    how = reward.credit_assignment
    if samples_alternatives(config):
        return "; ".join(filter(None, [alternatives_cost(config), _replay_cost(config, agents, size)]))
    others = config.rollout.num_generations - 1 if how is CreditAssignment.counterfactual else 1
    parts = []
    if how is not CreditAssignment.none:
        again = f", each for {others} other answers" if others > 1 else ""
        parts.append(f"{how.value}: {agents} x {size} more episodes are scored{again}")
    return "; ".join(filter(None, [*parts, _replay_cost(config, agents, size)])) or None


def _replay_cost(config: Config, agents: int, size: int) -> str | None:
    if not needs_replays(config):
        return None
    every = config.reward.measure_credit_every
    when = f"every {every} iterations " if every else ""
    return (
        f"{when}{agents} x {size} episodes are replayed, each with one agent's initial policy; turns of other "
        "agents with unchanged prompts are reused"
    )


def alternatives_cost(config: Config) -> str:
    """The replayed episodes of an iteration and a bound of the tokens that they sample, for `mode=plan`."""
    task, size, count = config.task, config.rollout.buffer_size, config.reward.credit_alternatives
    assert count is not None
    trained = [name for name, agent in task.agents.items() if not agent.frozen]
    limits = {name: limit for name, limit in max_turns_by_agent(task).items() if limit is not None}
    turns_per_agent = config.reward.credit_turns
    rest = "turns with unchanged prompts are reused"
    if len(limits) < len(task.agents):
        if turns_per_agent is None:
            return (
                f"counterfactual: {count} more episodes are replayed and scored for each turn of {len(trained)} "
                f"agents in {size} episodes; {rest}"
            )
        turns, tokens = turns_per_agent * len(trained), ""
    else:
        costs = _EpisodeCost(config, limits).token_bounds(trained)
        turns, tokens = len(costs), f", and at most {size * count * sum(costs)} tokens are sampled"
    has_fixed_length = task.is_fixed_length and all(agent.tools is None for agent in task.agents.values())
    bound = "" if has_fixed_length else "at most "
    return (
        f"counterfactual: {bound}{size * count * turns} more episodes are replayed and scored "
        f"({size} x {turns} turns x {count} alternatives){tokens}; {rest}"
    )


@dataclass(frozen=True)
class _EpisodeCost:
    """Bounds of the tokens that an alternative to a turn samples: of the turn, and of all turns after its step."""

    config: Config
    limits: dict[str, int]  # turns of each agent, including turns that call tools

    def token_bounds(self, trained: list[str]) -> list[int]:
        """A bound for each turn that may be measured in an episode."""
        most = self.config.reward.credit_turns
        # Later turns have no larger bounds, and which turns are measured is random.
        turns = {name: min(self.limits[name], most or self.limits[name]) for name in trained}
        bounds = {name: [self._bound_tokens(name, turn) for turn in range(turns[name])] for name in trained}
        if not self._is_calls:
            return [bound for name in trained for bound in bounds[name]]
        called = sorted((bound for name in trained if name != self._caller for bound in bounds[name]), reverse=True)
        shared = (self._answers - 1) * max(self._turns_per_answer(name) for name in self._helpers)
        return [*bounds.get(self._caller, []), *called[:shared]]

    def _bound_tokens(self, agent: str, turn: int) -> int:
        task = self.config.task
        rest = {agent: self.limits[agent] - turn}
        if task.built_in_protocol is None:
            # An environment may let the others act only now, as often as the task allows.
            rest |= {name: limit for name, limit in self.limits.items() if name != agent}
            return sum(turns * self._tokens_per_turn(name) for name, turns in rest.items())
        names = list(task.agents)
        answered = turn // self._turns_per_answer(agent)  # the fewest answers before this turn
        if self._is_calls:
            return self._bound_call_tokens(agent, turn, answered)
        for place, name in enumerate(names):
            if name == agent:
                continue
            turns = (self._answers - answered) * self._turns_per_answer(name)
            if task.built_in_protocol == "parallel":
                turns -= 1  # its first turn of the round is in the step of the agent's, or before it
            elif place < names.index(agent):
                turns -= self._turns_per_answer(name)
            rest[name] = turns
        return sum(turns * self._tokens_per_turn(name) for name, turns in rest.items())

    def _bound_call_tokens(self, agent: str, turn: int, answered: int) -> int:
        """Every message of the caller but its last one is followed by the answer of one called agent."""
        per_answer = {name: self._turns_per_answer(name) * self._tokens_per_turn(name) for name in self.limits}
        costliest = max(per_answer[name] for name in self._helpers)
        left = self._answers - 1 - answered  # messages of the caller after this one
        if agent == self._caller:
            own = self.limits[agent] - turn
            return own * self._tokens_per_turn(agent) + left * costliest
        own = (answered + 1) * self._turns_per_answer(agent) - turn  # of the present answer
        return own * self._tokens_per_turn(agent) + left * per_answer[self._caller] + (left - 1) * costliest

    @cached_property
    def _is_calls(self) -> bool:
        return self.config.task.built_in_protocol == "calls"

    @property
    def _caller(self) -> str:
        return next(iter(self.limits))

    @property
    def _helpers(self) -> list[str]:
        return list(self.limits)[1:]

    @property
    def _answers(self) -> int:
        """The most answers that an agent gives in a conversation."""
        assert self.config.task.max_answers is not None
        return self.config.task.max_answers

    def _turns_per_answer(self, name: str) -> int:
        agent = self.config.task.agents[name]
        return 1 if agent.tools is None else 1 + agent.max_tool_calls

    def _tokens_per_turn(self, name: str) -> int:
        return self.config.task.agents[name].rollout.max_new_tokens
