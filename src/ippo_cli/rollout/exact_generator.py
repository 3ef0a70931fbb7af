"""`rollout.on_policy=exact`: what an engine samples is a draft, and every token is the trained model's own sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ippo_cli.config.errors import NonFiniteError
from ippo_cli.config.schema import EngineSamplesConfig, RolloutConfig, SamplingConfig
from ippo_cli.engine import distributed
from ippo_cli.rollout.draft_verification import Draft, VerifiedTokens, verify_drafts
from ippo_cli.rollout.generator import Generator, HfGenerator, OnFinished, Poll, Request, SamplingStream, make_sampling
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.rollout.sampling import Sampling
from ippo_cli.rollout.stop_strings import contains_stop_string, decode_tokens, length_to_stop_string
from ippo_cli.types import Completion


@dataclass(kw_only=True)
class _Row:
    """A request with the tokens of its response that are verified."""

    request: Request
    limit: int  # tokens of the response
    ids: list[int]
    logprobs: Tensor  # [n] float32
    behavior_logprobs: Tensor  # [n] float32
    is_finished: bool = False  # by a stop token or a stop string
    num_redrawn: int = 0  # tokens that are not those of a draft

    @property
    def has_ended(self) -> bool:
        return self.is_finished or len(self.ids) >= self.limit

    @property
    def next_request(self) -> Request:
        return replace(self.request, response=tuple(self.ids))

    def extend(self, verified: VerifiedTokens) -> None:
        self.ids += verified.ids
        self.logprobs = torch.cat([self.logprobs, verified.logprobs])
        self.behavior_logprobs = torch.cat([self.behavior_logprobs, verified.behavior_logprobs])

    def cut(self, length: int) -> None:
        self.ids = self.ids[:length]
        self.logprobs, self.behavior_logprobs = self.logprobs[:length], self.behavior_logprobs[:length]


class ExactGenerator:
    """Verifies the drafts of another generator with the agents' own models, and continues where they differ.

    The samples are those of `HfGenerator` with the same noise, except for rounding between a whole forward and
    decoding, whichever model, precision or rule the drafts come from. Drafts with the same noise differ at few
    tokens. After `rollout.verify_rounds` rounds of drafts, the agents' models decode the remaining tokens.
    """

    def __init__(
        self,
        drafts: Generator,
        policies: Mapping[str, GenerationPolicy],
        config: RolloutConfig,
        sampling: Mapping[str, SamplingConfig],
        poll: Poll | None = None,
    ) -> None:
        self._drafts, self._policies, self._config = drafts, policies, config
        self._own = HfGenerator(policies, config, sampling, poll)
        self._sampling = {agent: make_sampling(sampling[agent]) for agent in policies}
        # Over all ranks, by agent: rows, changed rows, tokens, and tokens that are not a draft's.
        self._counts = {agent: torch.zeros(4, dtype=torch.long) for agent in policies}
        self._num_rounds = 0

    @property
    def parts(self) -> tuple[Generator, ...]:
        """The generators that it consists of."""
        return self._drafts, self._own

    def context_limit(self, agent: str) -> int:
        return self._own.context_limit(agent)

    def start_collection(self) -> None:
        self._drafts.start_collection()
        self._own.start_collection()

    def finish_collection(self) -> None:
        self._own.finish_collection()
        self._drafts.finish_collection()

    def close(self) -> None:
        self._own.close()
        self._drafts.close()

    def take_metrics(self) -> dict[str, float]:
        metrics = self._drafts.take_metrics() | {"rollout/verify_rounds": float(self._num_rounds)}
        for agent, counts in self._counts.items():
            rows, changed, tokens, own = counts.tolist()
            if rows:
                metrics[f"{agent}/rollout/changed_drafts"] = changed / rows
                metrics[f"{agent}/rollout/redrawn_tokens"] = own / max(tokens, 1)
            counts.zero_()
        self._num_rounds = 0
        return metrics

    def batch_groups(self, agents: Iterable[str]) -> list[tuple[str, ...]]:
        return self._drafts.batch_groups(agents)

    def generate(
        self,
        agents: Sequence[str],
        requests: Sequence[Request],
        draws: SamplingStream,
        *,
        on_finished: OnFinished | None = None,
    ) -> list[Completion]:
        rows = [self._make_row(request) for request in requests]
        completions: dict[int, Completion] = {}

        def report(places: Iterable[int]) -> None:
            new = {place: self._complete(rows[place]) for place in places if place not in completions}
            completions.update(new)
            if on_finished is not None and (sampled := [place for place in new if rows[place].ids]):
                on_finished(sampled, [new[place] for place in sampled])

        assert isinstance(self._config, EngineSamplesConfig)
        for _ in range(self._config.verify_rounds or 0):
            left = [place for place, row in enumerate(rows) if not row.has_ended]
            if not distributed.any_rank(bool(left)):
                break
            self._num_rounds += draws.is_training
            drafts = self._drafts.generate(agents, [rows[place].next_request for place in left], draws)
            for agent in agents:
                own = [(rows[place], draft) for place, draft in zip(left, drafts, strict=True)]
                self._verify(agent, [(row, draft) for row, draft in own if row.request.agent == agent], draws)
            with distributed.synchronize_errors():
                report(place for place in left if rows[place].has_ended)
        self._decode_rest(agents, rows, draws, report)
        with distributed.synchronize_errors():
            report(range(len(rows)))
        if draws.is_training:  # evaluations, which a resumed run does not repeat, are not counted
            self._count(agents, rows)
        return [completions[place] for place in range(len(rows))]

    def _make_row(self, request: Request) -> _Row:
        sampling, room = self._sampling[request.agent], self.context_limit(request.agent) - len(request.prompt)
        return _Row(
            request=request,
            limit=min(sampling.max_new_tokens, request.max_new_tokens or sampling.max_new_tokens, room),
            ids=list(request.response),
            logprobs=torch.zeros(len(request.response)),
            behavior_logprobs=torch.zeros(len(request.response)),
        )

    def _verify(self, agent: str, rows: Sequence[tuple[_Row, Completion]], draws: SamplingStream) -> None:
        """Extend an agent's rows by the verified part of their drafts. Collective."""
        policy, sampling = self._policies[agent], replace(self._sampling[agent], greedy=draws.greedy)
        with distributed.synchronize_errors(), policy.generation_mode("all") as model:
            known = [(row, draft.ids[len(row.ids) : row.limit].tolist()) for row, draft in rows]
            known = [(row, tokens) for row, tokens in known if tokens]
            if not known:
                return
            requests = [row.request for row, _ in known]
            noise = None
            if not draws.greedy:
                noise = draws.noise(requests, sampling.max_new_tokens, self._config.sampling)
            drafts = [
                Draft(row=number, prompt=row.request.prompt, response=row.ids, tokens=tokens)
                for number, (row, tokens) in enumerate(known)
            ]
            try:
                verified = verify_drafts(model, drafts, sampling, noise=noise, stop_ids=policy.stop_ids)
            except FloatingPointError as error:
                raise NonFiniteError(f"{agent}: {error}") from error
            for (row, tokens), own in zip(known, verified, strict=True):
                row.num_redrawn += own.ids[-1] != tokens[len(own.ids) - 1]
                row.extend(own)
                self._end_at_stop(row, sampling, policy)

    def _end_at_stop(self, row: _Row, sampling: Sampling, policy: GenerationPolicy) -> None:
        """End a row at its first stop token or stop string: an engine may have sampled beyond it."""
        start, stops = len(row.request.response), (*sampling.stop_strings, *row.request.stop_strings)
        ends = [place + 1 for place, token in enumerate(row.ids) if place >= start and token in policy.stop_ids]
        if ends:
            row.cut(ends[0])
        row.cut(length_to_stop_string(row.ids, stops, policy.tokenizer))
        row.is_finished = bool(ends[:1] == [len(row.ids)]) or contains_stop_string(row.ids, stops, policy.tokenizer)

    def _decode_rest(
        self,
        agents: Sequence[str],
        rows: Sequence[_Row],
        draws: SamplingStream,
        report: Callable[[Iterable[int]], None],
    ) -> None:
        """Decode the remaining tokens of all rows with the agents' own models. Collective."""
        left = [place for place, row in enumerate(rows) if not row.has_ended]
        if not distributed.any_rank(bool(left)):
            return
        for group in self._own.batch_groups(agents):
            places = [place for place in left if rows[place].request.agent in group]

            def extend(numbers: Sequence[int], completed: Sequence[Completion], places: list[int] = places) -> None:
                for number, completion in zip(numbers, completed, strict=True):
                    row = rows[places[number]]
                    first = len(row.ids)
                    if len(completion.ids) > first:
                        row.num_redrawn += len(completion.ids) - first
                        row.extend(
                            VerifiedTokens(
                                ids=completion.ids[first:].tolist(),
                                logprobs=completion.logprobs[first:],
                                behavior_logprobs=completion.behavior_logprobs[first:],
                            )
                        )
                    row.is_finished = completion.finished
                report(places[number] for number in numbers)

            requests = [rows[place].next_request for place in places]
            completed = self._own.generate(group, requests, draws, on_finished=extend)
            extend(range(len(places)), completed)

    def _complete(self, row: _Row) -> Completion:
        return Completion(
            ids=torch.tensor(row.ids, dtype=torch.long),
            logprobs=row.logprobs,
            behavior_logprobs=row.behavior_logprobs,
            text=decode_tokens(row.ids, self._policies[row.request.agent].tokenizer, with_special=False),
            finished=row.is_finished,
        )

    def _count(self, agents: Sequence[str], rows: Sequence[_Row]) -> None:
        """Add to the counts. Collective."""
        for agent in agents:
            own = [
                (1, row.num_redrawn > 0, len(row.ids) - len(row.request.response), row.num_redrawn)
                for row in rows
                if row.request.agent == agent
            ]
            self._counts[agent] += distributed.all_sum(torch.tensor([[0] * 4, *own], dtype=torch.long).sum(dim=0))


def verify_if_exact(
    drafts: Generator,
    policies: Mapping[str, GenerationPolicy],
    config: RolloutConfig,
    sampling: Mapping[str, SamplingConfig],
    poll: Poll | None = None,
) -> Generator:
    """The generator that verifies drafts with `rollout.on_policy=exact`; otherwise that of the drafts."""
    if not config.verifies_drafts:
        return drafts
    return ExactGenerator(drafts, policies, config, sampling, poll)
