"""Rows that an agent's policy trains on beside its own: the responses of other agents to the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ippo_cli.agents.team import Team
from ippo_cli.config.errors import IppoError
from ippo_cli.engine import distributed
from ippo_cli.types import Episode, Rollout


def share_rollouts(
    team: Team,
    episodes: Sequence[Episode],
    rollouts: Mapping[str, Rollout],
    after_pass: Callable[[], None],
    *,
    unfiltered: Collection[str] = (),
) -> dict[str, dict[str, Rollout]]:
    """By trained agent and author: the author's rows with log-probabilities under the agent's policy.

    Their behaviour log-probabilities remain those of the author's sampler, or for authors in `unfiltered` those before
    its filters. `after_pass` is called on all ranks after each forward pass, and may raise. Collective.
    """
    with distributed.synchronize_errors():
        _check_equal_prompts(episodes)
    shared: dict[str, dict[str, Rollout]] = {}
    for name, agent in team.items():
        shared[name] = {}
        for author in (other for other in rollouts if other != name):
            written = rollouts[author]
            shared[name][author] = agent.recompute_logprobs(written)
            if author in unfiltered:
                shared[name][author] = replace(shared[name][author], behavior_logprobs=written.logprobs)
            after_pass()
    return shared


def _check_equal_prompts(episodes: Sequence[Episode]) -> None:
    """Agents must have read the same tokens; equal templates and vocabularies alone do not guarantee that."""
    for episode in episodes:
        prompts = {turn.agent: turn.prompt for turn in episode.turns}
        for name, prompt in prompts.items():
            first, expected = next(iter(prompts.items()))
            if prompt != expected:
                raise IppoError(
                    f"team.share_rollouts=true: the prompts of {first} and {name} have different tokens; use agents "
                    "with one tokenizer and chat template"
                )
