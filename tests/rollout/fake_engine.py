"""An inference engine in Python: a copy of the model, one token of every request per step. Tests import it by path."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ippo_cli.config.errors import EngineError
from ippo_cli.rollout.engine import EngineModel, EngineOutput, EngineRequest
from ippo_cli.rollout.engine_pool import EnginePool
from ippo_cli.rollout.noise import GumbelNoise, TokenNoise, UniformNoise, uniforms
from ippo_cli.rollout.sampling import sample_tokens
from ippo_cli.rollout.tensor_hash import TensorHash, tensor_hash


class FakeEngine:
    """Samples from a copy of a model; `corrupt`, `skip` and `broken` make it fail as engines do.

    Weights may be loaded from another thread between two steps. `step_s`: least seconds of a step.
    """

    def __init__(
        self, model: EngineModel, original: Any, *, hold: int = 0, step_s: float = 0.0, temperature_factor: float = 1.0
    ) -> None:
        self.model, self.lm = model, copy.deepcopy(original)
        for parameter in self.lm.parameters():
            parameter.data.zero_()
        self.requests: dict[int, tuple[EngineRequest, list[int], list[float], list[int]]] = {}
        self.step_s, self.lock = step_s, threading.Lock()
        self.version = 0
        self.loads: list[int] = []
        self.most_in_flight = 0
        self.temperature_factor = temperature_factor  # of a sampler that is wrong
        self.hold = hold  # steps for which every second request waits
        self.steps = 0
        self.corrupt: str | None = None
        self.skip: str | None = None
        self.replacement: Mapping[str, Tensor] = {}  # loaded in place of what is given
        self.broken = False
        self.is_started = self.is_closed = False

    def start(self) -> None:
        self.is_started = True

    def reuse(self, model: EngineModel) -> None:
        self.model = model

    def submit(self, request: EngineRequest) -> None:
        assert request.max_new_tokens > 0
        self.requests[request.key] = request, [], [], []
        self.most_in_flight = max(self.most_in_flight, len(self.requests))

    @torch.no_grad()
    def step(self, *, waits: bool = True) -> list[EngineOutput]:
        if self.broken:
            raise EngineError("the engine has died")
        time.sleep(self.step_s)
        with self.lock:
            return self._step()

    def _step(self) -> list[EngineOutput]:
        self.steps += 1
        ended = []
        for key, (request, ids, logprobs, versions) in list(self.requests.items()):
            if self.hold and key % 2 and self.steps % (self.hold + 1):
                continue
            tokens = torch.tensor([[*request.prompt, *ids]])
            temperature = self.temperature_factor * request.sampling.temperature
            sampling, place = replace(request.sampling, temperature=temperature), torch.tensor([len(ids)])
            noise: TokenNoise = UniformNoise(uniforms(request.seed % 2**31, "fake", torch.tensor([0]), len(ids) + 1))
            if request.noise is not None:
                place += request.noise.position
                noise = GumbelNoise(torch.tensor([request.noise.key]), int(place) + 1)
            logits = self.lm(input_ids=tokens).logits[:, -1]
            chosen = sample_tokens(logits, sampling, noise=noise, places=place, seen=None, banned=None)
            ids.append(int(chosen.tokens))
            logprobs.append(float(chosen.behavior_logprobs))
            versions.append(self.version)
            if ids[-1] in request.stop_ids or len(ids) == request.max_new_tokens:
                del self.requests[key]
                ended.append(EngineOutput(key=key, ids=ids, logprobs=logprobs, versions=versions))
        return ended

    def abort(self) -> None:
        self.requests.clear()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> list[str]:
        with self.lock:
            return self._load_weights(weights, version)

    def _load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> list[str]:
        own, unplaced = dict(self.lm.named_parameters()), []
        for name, tensor in weights:
            if name not in own:
                unplaced.append(name)
            elif name != self.skip:
                own[name].data.copy_(self.replacement.get(name, tensor))
            if name == self.corrupt:
                own[name].data.view(-1)[0] += 1
        self.version = version
        self.loads.append(version)
        return unplaced

    def verify_weights(self, hashes: Mapping[str, TensorHash]) -> list[str]:
        return [name for name, own in self.lm.named_parameters() if tensor_hash(own) != hashes.get(name)]

    def load_adapter(self, name: str, folder: Path, version: int) -> None:
        raise NotImplementedError

    def verify_adapter(self, name: str, hashes: Mapping[str, TensorHash]) -> list[str]:
        raise NotImplementedError

    def sleep(self) -> bool:
        return False

    def close(self) -> None:
        self.is_closed = True


def use_fake_engines(policies: Mapping[str, Any], made: list[FakeEngine], **options: Any) -> EnginePool:
    """A pool of engines for these policies; new ones are appended to `made`."""
    originals = list({id(policy.language_model): policy.language_model for policy in policies.values()}.values())

    def make(model: EngineModel, number: int) -> FakeEngine:
        made.append(FakeEngine(model, originals[number], **options))
        return made[-1]

    return EnginePool(make)
