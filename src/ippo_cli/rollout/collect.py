"""Asking every agent: prompts in, rollouts out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch.profiler import record_function

from ippo_cli.agents.agent import GenerationPolicy
from ippo_cli.config.errors import ConfigError, NonFiniteError, PreemptionRequested
from ippo_cli.config.schema import RolloutConfig, Zero3Gather
from ippo_cli.engine import distributed
from ippo_cli.rewards.streaming import OnFinished
from ippo_cli.rollout.decode import decode
from ippo_cli.rollout.sampling import Sampling, uniforms
from ippo_cli.types import PromptBatch, Rollout

Poll = Callable[[str, int, int], None]  # agent, finished rows, all rows
KNOWN_TO_ALL: Mapping[Zero3Gather, tuple[type[BaseException], ...]] = {
    Zero3Gather.all: (Exception, PreemptionRequested),
    Zero3Gather.layer: (NonFiniteError, PreemptionRequested),  # after anything else the others wait within a forward
}
"""What one rank may raise while it decodes without leaving the others in a collective."""


def sampling_of(config: RolloutConfig) -> Sampling:
    """The sampling settings of training rollouts."""
    return Sampling(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        repetition_penalty=config.repetition_penalty,
        max_new_tokens=config.max_new_tokens,
        min_new_tokens=config.min_new_tokens,
        stop_strings=tuple(config.stop_strings),
        greedy=False,
    )


def collect(
    agents: Mapping[str, GenerationPolicy],
    batch: Mapping[str, PromptBatch],
    config: RolloutConfig,
    *,
    seed: int,
    purpose: str,
    greedy: bool = False,
    poll: Poll | None = None,
    on_finished: OnFinished | None = None,
) -> dict[str, Rollout]:
    """Every agent's responses. What a row draws depends on (seed, purpose, agent, global index) alone.

    `poll` is called after every token, `on_finished` with rows that an agent has finished. Where `poll` raises
    `PreemptionRequested` on one rank, `collect` raises it on all: after the agent, before weights of the next one are
    gathered, or with layered gathering before the next token.
    """
    sampling = replace(sampling_of(config), greedy=greedy)
    found: dict[str, Rollout] = {}
    for name, agent in agents.items():
        with distributed.failing_together(KNOWN_TO_ALL[config.zero3_gather]):
            found[name] = _agent_rollout(
                agent, batch[name], config, sampling, seed, f"{purpose}/{name}", poll, on_finished
            )
    return found


class _LayeredMeeting:
    """Where ranks meet that decode in step: what `poll` raises on one of them is raised on all before the next forward.

    All of them are then in the middle of the same rollout, and none waits for weights that another one holds.
    """

    def __init__(self, poll: Callable[[int, int], None]) -> None:
        self._poll = poll
        self._requested = False

    def poll(self, done: int, rows: int) -> None:
        try:
            self._poll(done, rows)
        except PreemptionRequested:
            self._requested = True

    def any_rank(self, flag: bool) -> bool:
        up, requested = distributed.all_max(torch.tensor([int(flag), int(self._requested)])).tolist()
        if requested:
            raise PreemptionRequested
        return bool(up)


def _agent_rollout(
    agent: GenerationPolicy,
    prompts: PromptBatch,
    config: RolloutConfig,
    sampling: Sampling,
    seed: int,
    stream: str,
    poll: Poll | None,
    on_finished: OnFinished | None,
) -> Rollout:

    def told(done: int, rows: int) -> None:
        if poll is not None:
            poll(agent.name, done, rows)

    meeting = _LayeredMeeting(told) if config.zero3_gather is Zero3Gather.layer else None
    with record_function(f"ippo/rollout/{agent.name}"), agent.generation_mode(config.zero3_gather.value) as policy:
        device = next(policy.parameters()).device
        ids, mask = prompts.ids.to(device), prompts.mask.to(device)
        limit = context_limit(policy.lm.config, config)
        _refuse_too_long(agent.name, prompts, config, limit)
        draws = None if sampling.greedy else uniforms(seed, stream, prompts.index, sampling.max_new_tokens).to(device)
        try:
            decoded = decode(
                policy.lm,
                agent.tokenizer,
                ids,
                mask,
                sampling,
                uniforms=draws,
                batch_size=config.decode_batch_size,
                context_limit=limit,
                poll=told if meeting is None else meeting.poll,
                finished=None if on_finished is None else lambda rows, texts: on_finished(agent.name, rows, texts),
                any_rank=None if meeting is None else meeting.any_rank,
            )
        except FloatingPointError as error:
            raise NonFiniteError(f"{agent.name}: {error}") from error
    return Rollout(
        prompt_ids=ids,
        prompt_mask=mask,
        response_ids=decoded.response_ids,
        response_mask=decoded.response_mask,
        turn=torch.where(decoded.response_mask, 0, -1),
        length=decoded.response_mask.sum(dim=1),
        logprobs=decoded.logprobs,
        behavior_logprobs=decoded.behavior_logprobs,
        finished=decoded.finished,
        texts=decoded.texts,
    )


def _refuse_too_long(agent: str, prompts: PromptBatch, config: RolloutConfig, limit: int) -> None:
    longest = int(prompts.mask.sum(dim=1).max()) if len(prompts.mask) else 0
    if longest >= limit:
        raise ConfigError(
            f"rollout.max_prompt_tokens={config.max_prompt_tokens}",
            f"lets in agent {agent}'s prompt of {longest} tokens, which leaves no room for a response in "
            f"its context of {limit}",
            "shorten the prompts, or use a model with a longer context",
        )


def context_limit(model_config: object, config: RolloutConfig) -> int:
    """Tokens that prompt and response may have together."""
    made_for = getattr(model_config, "max_position_embeddings", None) or 1 << 30
    return min(made_for, config.context_limit or made_for)
