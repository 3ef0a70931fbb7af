"""Enumerates the game that a team plays: its episodes over legal actions and chance, as a game tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.config.reward_weights import reward_weights
from ippo_cli.evaluation.evaluate_run import EvaluationTask
from ippo_cli.formulas.game_tree import Leaf, Node, Tree
from ippo_cli.rewards.score import call_reward, combine_rewards, failed_rows, first_failure_message
from ippo_cli.rollout.collect import start_states, update_prompts
from ippo_cli.rollout.enumerate import enumerate_responses
from ippo_cli.rollout.episode_state import EpisodeState
from ippo_cli.rollout.generator import SamplingStream, context_limit, make_sampling
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.dry_run import SupportsActions, SupportsChance
from ippo_cli.types import Batch, Completion, Example

KEY = "exploitability=exact"
MAX_NODES = 200_000
MAX_RESPONSES = 1 << 14  # to one prompt
MAX_DROPPED = 1e-6
"""Probability of all responses to a prompt that are left out, the least likely ones."""
ILLEGAL = None
"""The action of all responses that are no legal action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What an agent can do at one prompt: its legal actions, and an illegal one if its policy samples any."""

    actions: list[str | None]
    completions: list[Completion]  # the most likely response of each action
    probabilities: list[float]


@dataclass(frozen=True, kw_only=True)
class EnumeratedGame:
    """The tree of a game, of which player i is agent i."""

    tree: Node
    nodes: int
    information_sets: dict[str, int]  # by agent
    illegal: dict[str, float]  # by agent, the largest probability of illegal responses at a prompt
    chance: str  # where the outcomes of chance come from


@dataclass
class GameEnumerator:
    """Plays every combination of actions of one team by replaying its episodes from their start."""

    exam: EvaluationTask
    policies: Mapping[str, GenerationPolicy]
    formats: Mapping[str, PromptFormat]
    _options: dict[Any, Options] = field(default_factory=dict)  # by agent, prompt and legal actions
    _nodes: int = 0
    _information: dict[str, set[Any]] = field(default_factory=dict)
    _illegal: dict[str, float] = field(default_factory=dict)

    def enumerate(self) -> EnumeratedGame:
        """The whole game. Raises `ConfigError` without legal actions, `PreflightError` for a game that is too large."""
        agents = list(self.policies)
        self._information = {name: set() for name in agents}
        self._illegal = dict.fromkeys(agents, 0.0)
        outcomes, chance = self._chance_outcomes()
        children = [self._play(example, index, [], dict.fromkeys(agents, ())) for example, index, _ in outcomes]
        return EnumeratedGame(
            tree=Node(player=None, probabilities=[weight for *_, weight in outcomes], children=children),
            nodes=self._nodes,
            information_sets={name: len(found) for name, found in self._information.items()},
            illegal=self._illegal,
            chance=chance,
        )

    def _chance_outcomes(self) -> tuple[Sequence[tuple[Example, int, float]], str]:
        """Examples with index and probability: all outcomes of the environment, or the held-out rows."""
        environment = self.exam.environments.acquire()
        seeds = environment.chance_outcomes() if isinstance(environment, SupportsChance) else {}
        self.exam.environments.release(environment, usable=True)
        if seeds:
            first = self.exam.held_out[0]
            total = sum(seeds.values())
            found = [
                ({**first, "seed": seed}, place, weight / total) for place, (seed, weight) in enumerate(seeds.items())
            ]
            return found, f"{len(seeds)} outcomes of the environment"
        rows = self.exam.row_indices
        return [(self.exam.held_out[row], row, 1 / len(rows)) for row in rows], f"{len(rows)} held-out rows"

    def _play(
        self, example: Example, index: int, path: list[dict[str, Completion]], known: Mapping[str, tuple[Any, ...]]
    ) -> Tree:
        """The tree after the steps of `path`. `known`: observations and actions of each agent so far."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise PreflightError(
                f"{KEY}: the game has more than {MAX_NODES} states; use fewer held-out rows (evaluation.size=), or "
                "exploitability=true"
            )
        state = self._replay(example, index, path)
        try:
            if state.is_over:
                return Leaf(self._payoffs(state))
            pending = {name: self._find_options(state, name) for name in state.pending_agents}
            seen = {name: (*known[name], state.pending_agents[name]) for name in pending}
        finally:
            state.release(self.exam.environments)
        return self._expand(example, index, path, {**known, **seen}, pending, {})

    def _expand(
        self,
        example: Example,
        index: int,
        path: list[dict[str, Completion]],
        known: Mapping[str, tuple[Any, ...]],
        pending: Mapping[str, Options],
        chosen: Mapping[str, int],
    ) -> Tree:
        """The nodes of the agents that act in one step and have not chosen yet, then the rest of the game."""
        agents = list(self.policies)
        waiting = [name for name in pending if name not in chosen]
        if not waiting:
            answers = {name: pending[name].completions[place] for name, place in chosen.items()}
            acted = {name: (*known[name], pending[name].actions[place]) for name, place in chosen.items()}
            return self._play(example, index, [*path, answers], {**known, **acted})
        name, options = waiting[0], pending[waiting[0]]
        information = (known[name], tuple(options.actions))
        self._information[name].add(information)
        return Node(
            player=agents.index(name),
            information=information,
            probabilities=options.probabilities,
            children=[
                self._expand(example, index, path, known, pending, {**chosen, name: place})
                for place in range(len(options.actions))
            ],
        )

    def _replay(self, example: Example, index: int, path: Sequence[Mapping[str, Completion]]) -> EpisodeState:
        """The state of an episode after these steps. Raises `PreflightError` if the environment fails."""
        rollout = self.exam.config.rollout
        limits = {name: context_limit(policy.model_config, rollout) for name, policy in self.policies.items()}
        draws = SamplingStream(seed=self.exam.config.evaluation.seed, purpose="evaluation")
        (state,) = start_states(Batch(examples=[example], index=torch.tensor([index])), self.formats, limits)
        state.reset(self.exam.environments, draws)
        update_prompts([state], self.formats, limits)
        for answers in path:
            for name, completion in answers.items():
                state.add_completion(name, completion)
            state.step()
            update_prompts([state], self.formats, limits)
        if state.failure is not None:
            raise PreflightError(f"{KEY}: an episode failed ({state.failure})") from state.failure
        return state

    def _payoffs(self, state: EpisodeState) -> tuple[float, ...]:
        config, agents, episode = self.exam.config, list(self.policies), state.to_episode()
        rewards, failure = call_reward(self.exam.reward, [episode], agents, config.reward)
        scores = combine_rewards(rewards, [episode], reward_weights(config), agents)
        if any(failed_rows(rewards, values).any() for values in scores.values()):
            raise PreflightError(f"{KEY}: an episode has no reward ({first_failure_message(failure)})")
        return tuple(float(values.double().sum()) for values in scores.values())

    def _find_options(self, state: EpisodeState, agent: str) -> Options:
        environment = state.environment
        legal = environment.actions().get(agent, ()) if isinstance(environment, SupportsActions) else ()
        if not legal:
            raise ConfigError(
                KEY,
                f"enumerates legal actions, and the environment lists none for {agent} (method `actions`)",
                "use exploitability=true",
            )
        prompt = state.conversations[agent].ids
        key = (agent, tuple(prompt), tuple(legal))
        if key not in self._options:
            self._options[key] = self._weigh_actions(agent, prompt, list(dict.fromkeys(legal)))
            if self._options[key].actions[-1] is ILLEGAL:
                self._illegal[agent] = max(self._illegal[agent], self._options[key].probabilities[-1])
        return self._options[key]

    def _weigh_actions(self, agent: str, prompt: Sequence[int], legal: Sequence[str]) -> Options:
        """The probability of each action; responses are compared without surrounding white space."""
        policy, config = self.policies[agent], self.exam.config
        with policy.generation_mode(config.rollout.zero3_gather.value) as generating:
            found = enumerate_responses(
                generating.lm,
                policy.tokenizer,
                prompt,
                (),
                make_sampling(config.task.agents[agent].rollout),
                context_limit=context_limit(policy.model_config, config.rollout),
                max_count=MAX_RESPONSES,
                max_dropped=MAX_DROPPED,
            )
        if found is None:
            raise PreflightError(
                f"{KEY}: {agent} has more than {MAX_RESPONSES} likely responses to a prompt; use exploitability=true, "
                "or a smaller rollout.max_new_tokens"
            )
        weights: dict[str | None, float] = dict.fromkeys(legal, 0.0)
        likeliest: dict[str | None, tuple[float, Completion]] = {
            text: (0.0, self._write_action(agent, text)) for text in legal
        }
        by_text = {text.strip(): text for text in legal}
        for completion, weight in zip(found.completions, found.probabilities.tolist(), strict=True):
            action = by_text.get(completion.text.strip(), ILLEGAL)
            weights[action] = weights.get(action, 0.0) + weight
            if action not in likeliest or weight > likeliest[action][0]:
                likeliest[action] = weight, completion
        total = sum(weights.values())
        return Options(
            actions=list(weights),
            completions=[likeliest[action][1] for action in weights],
            probabilities=[weight / total for weight in weights.values()],
        )

    def _write_action(self, agent: str, text: str) -> Completion:
        """A response that the policy does not sample."""
        ids = torch.tensor(self.policies[agent].tokenizer.encode(text, add_special_tokens=False), dtype=torch.long)
        zeros = torch.zeros(len(ids))
        return Completion(ids=ids, logprobs=zeros, behavior_logprobs=zeros, text=text, finished=True)
