"""What one DeepSpeed engine holds, in bytes per rank: read in its source, and compared with it by a test."""

from __future__ import annotations

from dataclasses import dataclass

from ippo_cli.engine.zero_config import MAX_LIVE

REDUCED_AT_ONCE = 500_000_000  # elements that DeepSpeed copies together where it reduces gradients at the step
MOMENTS = 8  # AdamW's two, in float32
FP32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Bytes on one rank. What stands from one update to the next, and what an update or a forward adds."""

    weights: float
    master: float = 0.0  # float32 weights that the optimizer steps on; fp32 models have a copy of theirs as well
    moments: float = 0.0  # AdamW's, from the first step on
    gradients: float = 0.0  # added up over micro-batches
    buckets: float = 0.0  # in which gradients travel
    gathered: float = 0.0  # stage 3: whole weights that a forward holds beside the spread ones
    stepping: float = 0.0  # copies made by reducing at, and by taking, the optimizer step
    host: float = 0.0  # in the machine's memory instead, of what is offloaded
    gradients_stay: bool = False  # whether gradients and buckets are held between updates as well

    @property
    def optimizer(self) -> float:
        return self.master + self.moments

    @property
    def standing(self) -> float:
        """On the device all the time, once the first step is taken."""
        return self.weights + self.optimizer + (self.gradients + self.buckets if self.gradients_stay else 0.0)

    @property
    def updating(self) -> float:
        """On the device at the greatest moment of an update, activations apart."""
        return self.weights + self.optimizer + self.gradients + self.buckets + max(self.gathered, self.stepping)


def engine_memory(
    parameters: int,
    *,
    stage: int,
    width: int,
    ranks: int,
    bucket: int,
    persistent: int,
    offload_optimizer: bool,
    offload_params: bool,
) -> EngineMemory:
    """Of a model of so many parameters, `width` bytes each, at the stage that its engine really runs at.

    `bucket` is the size of its reduction buckets, and `persistent` the number of parameters that stage 3 keeps whole,
    both in elements.
    """
    whole = float(parameters)
    share = whole / ranks
    buckets = float(FP32 * bucket)
    if stage == 0:
        return _own_optimizer(whole, ranks)
    if stage == 3:
        spread = _spread(whole, width, ranks, persistent)
        return _spread_weights(whole, share, width, spread, buckets, offload_optimizer, offload_params)
    if offload_optimizer:
        return _offloaded_optimizer(whole, share, width, stage, buckets)
    if stage == 1 and width < FP32:
        return _bf16_optimizer(whole, share, width)
    return _spread_optimizer(whole, share, width, stage, buckets)


def read_memory(parameters: int, *, width: int, ranks: int, persistent: int, offload_params: bool) -> EngineMemory:
    """Of a model without an optimizer that is spread as stage 3 spreads weights; see `engine_memory`."""
    spread = _spread(float(parameters), width, ranks, persistent)
    return EngineMemory(
        weights=0.0 if offload_params else spread,
        gathered=width * min(float(parameters), MAX_LIVE),
        host=spread if offload_params else 0.0,
    )


def _spread(whole: float, width: int, ranks: int, persistent: int) -> float:
    return width * (whole / ranks + persistent * (1.0 - 1.0 / ranks))


def _own_optimizer(whole: float, ranks: int) -> EngineMemory:
    """Stage 0, in fp32 alone: the client's own optimizer on the module's own weights."""
    return EngineMemory(
        weights=FP32 * whole,
        moments=MOMENTS * whole,
        gradients=FP32 * whole,
        stepping=FP32 * min(whole, REDUCED_AT_ONCE) if ranks > 1 else 0.0,
    )


def _bf16_optimizer(whole: float, share: float, width: int) -> EngineMemory:
    """Stage 1 in bf16: DeepSpeed's bf16 optimizer, with whole float32 gradients from the start."""
    return EngineMemory(
        weights=width * whole,
        master=FP32 * share,
        moments=MOMENTS * share,
        gradients=FP32 * whole,
        stepping=FP32 * min(whole, REDUCED_AT_ONCE),
        gradients_stay=True,
    )


def _spread_optimizer(whole: float, share: float, width: int, stage: int, buckets: float) -> EngineMemory:
    """Stages 1 and 2: a rank steps on its share."""
    return EngineMemory(
        weights=width * whole,
        master=FP32 * share,
        moments=MOMENTS * share,
        gradients=FP32 * (whole if stage == 1 else share),
        buckets=buckets,
        stepping=FP32 * share,
    )


def _offloaded_optimizer(whole: float, share: float, width: int, stage: int, buckets: float) -> EngineMemory:
    """Stages 1 and 2 whose steps the host takes: it also keeps the part it steps on in the weights' own type."""
    return EngineMemory(
        weights=width * whole,
        # Stage 1 leaves what other ranks step on where it was added up.
        gradients=FP32 * (whole - share) if stage == 1 else 0.0,
        buckets=buckets,
        stepping=width * share,
        host=FP32 * share + MOMENTS * share + (2 * FP32 + width) * share,
    )


def _spread_weights(
    whole: float,
    share: float,
    width: int,
    spread: float,
    buckets: float,
    offload_optimizer: bool,
    offload_params: bool,
) -> EngineMemory:
    """Stage 3: weights are spread as well, each of the parts where it is wanted."""
    master, moments = FP32 * share, MOMENTS * share
    # What steps in the machine's memory has its own gradient beside the one that is added up there.
    host = (master + moments + 2 * FP32 * share if offload_optimizer else 0.0) + (spread if offload_params else 0.0)
    return EngineMemory(
        weights=0.0 if offload_params else spread,
        master=0.0 if offload_optimizer else master,
        moments=0.0 if offload_optimizer else moments,
        gradients=0.0 if offload_optimizer else FP32 * share,
        buckets=buckets,
        gathered=width * min(whole, MAX_LIVE),
        stepping=FP32 * share,
        host=host,
        gradients_stay=True,
    )
