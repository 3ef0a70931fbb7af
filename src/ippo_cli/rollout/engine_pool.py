"""Engines of a process that no generator uses: an engine takes seconds to start, and vLLM does not free its memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable

from ippo_cli.engine.rank_group import current_group
from ippo_cli.rollout.engine import EngineModel, InferenceEngine


class EnginePool:
    """Makes engines, and gives released ones to later generators for models of the same shape."""

    def __init__(self, make: Callable[[EngineModel, int], InferenceEngine], *, reuses: bool = True) -> None:
        """`reuses`: whether released engines are kept; False: they are ended."""
        self._make, self._reuses = make, reuses
        self._idle: dict[Hashable, list[InferenceEngine]] = {}
        self._shapes: dict[int, Hashable] = {}

    def acquire(self, model: EngineModel, number: int) -> InferenceEngine:
        """An idle engine for a model of this shape, or a new one. `number`: of the engine in its generator."""
        shape = _shape(model), number
        if idle := self._idle.get(shape):
            engine = idle.pop()
            engine.reuse(model)
        else:
            engine = self._make(model, number)
            self._shapes[id(engine)] = shape
        return engine

    def release(self, engine: InferenceEngine) -> None:
        """Keep an engine for a later generator, or end it."""
        if not self._reuses:
            engine.close()
            return
        self._idle.setdefault(self._shapes[id(engine)], []).append(engine)

    def close(self) -> None:
        """End the idle engines."""
        for engines in self._idle.values():
            for engine in engines:
                engine.close()
        self._idle.clear()


def _shape(model: EngineModel) -> Hashable:
    """Equal for models that an engine can serve in turn: ranks that share an engine agree on it."""
    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    return (
        current_group().ranks,
        json.dumps(config, default=str, sort_keys=True),
        len(model.tokenizer),
        model.dtype,
        model.max_length,
        model.usual_length,
        model.max_rows,
        model.max_adapters,
        model.max_adapter_rank,
        model.has_noise,
    )
