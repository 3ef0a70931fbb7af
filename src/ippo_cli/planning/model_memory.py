"""Memory of single models, and of all models and phases of one rank. All sizes are in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ippo_cli.engine.zero_memory import EngineMemory
from ippo_cli.models.shape import ModelShape
from ippo_cli.planning.sampler_memory import SamplerMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """Memory of one engine."""

    name: str
    shape: ModelShape
    bytes_per_weight: int  # bytes per weight
    memory: EngineMemory
    scoring_bytes: float  # activations and logits of a forward pass without gradients; 0 if it runs none
    training_bytes: float  # activations and logits of a micro-batch with gradients
    has_several_micro_batches: bool  # per optimizer step
    is_actor: bool
    is_stage3: bool  # stage 3 loads weights one parameter at a time
    measuring_bytes: float = 0.0  # a measurement of parts of the gradient before a step; 0 without one

    @property
    def update_bytes(self) -> float:
        """Additional memory during an update."""
        peak = self.memory.update_peak(self.training_bytes, has_several=self.has_several_micro_batches)
        return max(peak, self.measuring_bytes)

    @property
    def loading_bytes(self) -> float:
        """Additional memory during the engine's initialisation."""
        whole = self.bytes_per_weight * max(self.shape.sizes) if self.is_stage3 else 0.0
        return max(self.memory.load_peak - self.memory.resident_at_start, 0.0) + whole


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenModel:
    """Memory of one model without an optimizer: reference, adapter base, frozen actor, snapshot or reward model."""

    name: str
    shape: ModelShape
    bytes_per_weight: int
    sharded_memory: EngineMemory | None = None  # its share if sharded at stage 3; None if every rank holds all weights

    @property
    def weight_bytes(self) -> float:
        if self.sharded_memory is not None:
            return self.sharded_memory.weights
        return self.shape.quantized_bytes or float(self.bytes_per_weight * self.shape.parameters)

    @property
    def gathered_bytes(self) -> float:
        """Gathered weights during a forward pass."""
        return 0.0 if self.sharded_memory is None else self.sharded_memory.gathered_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Memory estimate of one rank."""

    device: str  # `cpu` or `cuda`
    trained: tuple[TrainedModel, ...]
    frozen: tuple[FrozenModel, ...]
    kv_cache_bytes: float  # KV cache and sampling logits, maximum over agents
    prefix_cache_bytes: float  # cached keys and values of earlier turns, sum over agents; 0 without prefix reuse
    rollout_gathered_bytes: float  # stage 3: gathered weights during decoding
    reference_gathered_bytes: float  # stage 3: gathered reference weights during the policy's forward pass
    sampler: SamplerMemory | None = None  # of inference engines in the run
    frozen_scoring_bytes: float = 0.0  # forward pass of a reference on a rank without its actor

    @property
    def resident_bytes(self) -> float:
        """Permanent memory on the device, from the first update on."""
        sampler = 0.0 if self.sampler is None else self.sampler.resident
        return sum(model.memory.resident for model in self.trained) + self._frozen_bytes + sampler

    @property
    def certain_bytes(self) -> float:
        """Device memory independent of sequence lengths: weights, optimizer states, and gradients of one update."""
        gradients = max((model.memory.transient_gradients for model in self.trained), default=0.0)
        # Caches are as large as memory allows.
        caches = self.sampler.caches if self.sampler is not None and not self.sampler.sleeps else 0.0
        return self.resident_bytes - caches + gradients

    @property
    def host_bytes(self) -> float:
        """Offloaded to host memory."""
        frozen = sum(model.sharded_memory.host for model in self.frozen if model.sharded_memory is not None)
        return sum(model.memory.host for model in self.trained) + frozen

    @property
    def save_bytes(self) -> float:
        """Host memory on rank 0 while the largest model is gathered and saved."""
        saved = (float(model.bytes_per_weight * model.shape.saved_parameters) for model in self.trained)
        return max(saved, default=0.0)

    @property
    def bytes_by_phase(self) -> dict[str, float]:
        """Peak device memory of each phase."""
        loaded = sum(model.memory.resident_at_start for model in self.trained)
        scored = max(
            (model.scoring_bytes + model.memory.gathered_weights for model in self.trained if model.scoring_bytes),
            default=0.0,
        )
        return {
            "load": loaded + max((model.loading_bytes for model in self.trained), default=0.0) + self._frozen_bytes,
            "rollout": self.resident_bytes
            + self.rollout_gathered_bytes
            + (self.sampler.weights + self.sampler.caches if self.sampler is not None and self.sampler.sleeps else 0.0)
            + self.kv_cache_bytes
            + self.prefix_cache_bytes,
            "targets": self.resident_bytes + max(self.reference_gathered_bytes + scored, self.frozen_scoring_bytes),
            "update": self.resident_bytes
            + self.reference_gathered_bytes
            + max((model.update_bytes for model in self.trained), default=0.0),
            "save": self.resident_bytes + (self.save_bytes if self.device == "cpu" else 0.0),
        }

    @property
    def peak_phase(self) -> tuple[str, float]:
        """The phase with the highest peak, and its bytes."""
        return max(self.bytes_by_phase.items(), key=lambda phase: phase[1])

    @property
    def _frozen_bytes(self) -> float:
        return sum(model.weight_bytes for model in self.frozen)
