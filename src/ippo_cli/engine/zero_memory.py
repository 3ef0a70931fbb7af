"""Memory of one DeepSpeed engine, in bytes per rank: derived from its source, and verified by a test."""

from __future__ import annotations

from dataclasses import dataclass

REDUCE_CHUNK = 500_000_000  # elements that DeepSpeed copies together when it reduces gradients at the step
SUB_GROUP_SIZE = 1_000_000_000  # elements per step of stage 3, see `zero_config`
MOMENTS = 8  # AdamW's two, in float32
FP32 = 4
FP64 = 8  # dtype of gradient norms at stages 1 to 3, one parameter at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Bytes on one rank: persistent between updates, and added by a pass, a step or loading."""

    weights: float
    master: float = 0.0  # float32 weights of the optimizer; fp32 models have a copy as well
    moments: float = 0.0  # AdamW's, from the first step on
    gradients: float = 0.0  # accumulated over micro-batches
    buckets: float = 0.0  # of gradient reduction, from a backward pass on
    incoming_gradient: float = 0.0  # gradient of the largest parameter, before it is accumulated
    gathered_weights: float = 0.0  # stage 3: whole weights in a forward, in addition to the shards
    reduce_buffers: float = 0.0  # of a backward pass, after a first bucket is full: its copies and remainders
    first_bucket: float = 1.0  # fraction of a backward pass until then
    step_buffers: float = 0.0  # of a step: reduction, norms and copies, and transient gradients
    load_peak: float = 0.0  # while DeepSpeed wraps the model, including the original weights
    decode_weights: float = 0.0  # stage 3: whole weights in addition to the shards
    host: float = 0.0  # in host memory, for offloading
    keeps_gradients: bool = False  # whether gradients and buckets persist between updates

    @property
    def optimizer(self) -> float:
        return self.master + self.moments

    @property
    def transient_gradients(self) -> float:
        """Gradients that exist only from the first backward pass to the step."""
        return 0.0 if self.keeps_gradients else self.gradients

    @property
    def resident(self) -> float:
        """Persistent memory on the device after the first step."""
        return self.weights + self.optimizer + (self.gradients + self.buckets if self.keeps_gradients else 0.0)

    @property
    def resident_at_start(self) -> float:
        """Persistent memory on the device before the first step."""
        return self.resident - self.moments

    def update_peak(self, activations: float, *, has_several: bool) -> float:
        """Peak memory of an update, in addition to persistent memory.

        `activations` are those that one micro-batch's forward keeps for its backward pass; `has_several`: whether a
        step has several micro-batches, so that gradients already exist when a forward begins.
        """
        buckets = 0.0 if self.keeps_gradients else self.buckets
        before = self.transient_gradients if has_several else 0.0
        begun = before + buckets + self.gathered_weights + activations + self.incoming_gradient
        # Activations are freed while gradients are created.
        activations_left = activations * (1.0 - self.first_bucket)
        reduced = before + buckets + self.gathered_weights + activations_left + self.reduce_buffers
        done = self.transient_gradients + buckets + self.gathered_weights + self.incoming_gradient
        return max(begun, reduced, done, self.step_buffers)


def engine_memory(
    parameters: int,
    *,
    stage: int,
    width: int,
    ranks: int,
    bucket: int,
    largest: int,
    persistent: int,
    live: int,
    offload_optimizer: bool,
    offload_params: bool,
    on_host: bool = False,
) -> EngineMemory:
    """Memory of an engine for a model of so many parameters, `width` bytes each, at its effective stage.

    `on_host`: whether ranks compute on CPUs, where gloo copies what it gathers, reduces and scatters. `bucket` is the
    size of its reduction buckets, `largest` that of its largest parameter, `persistent` the number of parameters that
    stage 3 does not shard, and `live` the number of others that a pass keeps gathered, without the last of them, all in
    elements.
    """
    sizes = _Sizes(
        whole=float(parameters),
        share=parameters / ranks,
        width=width,
        bucket=float(min(bucket, parameters)),
        largest=float(largest),
        ranks=ranks,
        has_copies=on_host and ranks > 1,
    )
    if stage == 0:
        return _stage0_memory(sizes)
    if stage == 3:
        return _stage3_memory(sizes, persistent, live, offload_optimizer, offload_params)
    if offload_optimizer:
        return _offloaded_memory(sizes, stage)
    if stage == 1 and width < FP32:
        return _stage1_bf16_memory(sizes)
    return _stage1_fp32_memory(sizes) if stage == 1 else _stage2_memory(sizes)


def inference_memory(
    parameters: int, *, width: int, ranks: int, largest: int, persistent: int, live: int, offload_params: bool
) -> EngineMemory:
    """Memory of a stage 3 model without an optimizer; see `engine_memory`."""
    spread = _partitioned_bytes(float(parameters), width, ranks, persistent)
    return EngineMemory(
        weights=0.0 if offload_params else spread,
        gathered_weights=_gathered_bytes(float(parameters), width, ranks, live + largest, offload_params),
        load_peak=spread,
        decode_weights=_unpartitioned_bytes(float(parameters), width, ranks, persistent, offload_params),
        host=spread if offload_params else 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Sizes in elements, except the width."""

    whole: float
    share: float
    width: int
    bucket: float
    largest: float
    ranks: int
    has_copies: bool  # whether a collective makes copies of its own

    @property
    def flatten_bytes(self) -> float:
        """Bytes while weights are copied into one flat tensor: both exist."""
        return 2 * self.width * self.whole

    @property
    def gather_copy_bytes(self) -> float:
        """Bytes of the copy of all weights when ranks gather the updated ones."""
        return self.width * self.whole if self.has_copies else 0.0

    @property
    def overwritten_bytes(self) -> float:
        """Bytes of memory-mapped weights that become private when rank 0's values overwrite them.

        Weights that are cast during loading, as to float32, are private from the start.
        """
        return self.width * self.whole if self.has_copies and self.width < FP32 else 0.0

    @property
    def norm_bytes(self) -> float:
        """Bytes of the largest gradient of a rank's share in float64."""
        return FP64 * min(self.largest, self.share)

    @property
    def first_bucket(self) -> float:
        return self.bucket / self.whole


def _partitioned_bytes(whole: float, width: int, ranks: int, persistent: int) -> float:
    return width * (whole / ranks + persistent * (1.0 - 1.0 / ranks))


def _gathered_bytes(whole: float, width: int, ranks: int, at_once: float, offload_params: bool) -> float:
    """Up to `at_once` elements: gathered weights, and the parameter that exceeds the limit, by use or prefetch.

    One rank has whole weights and reads them in place.
    """
    return width * min(whole, at_once) if ranks > 1 or offload_params else 0.0


def _unpartitioned_bytes(whole: float, width: int, ranks: int, persistent: int, offload_params: bool) -> float:
    return width * (whole - persistent) if ranks > 1 or offload_params else 0.0


def _step_reduction_bytes(sizes: _Sizes) -> float:
    """A copy of gradients that are reduced together; a larger single tensor is reduced in place.

    A single rank reduces nothing.
    """
    return FP32 * sizes.whole if sizes.ranks > 1 and sizes.whole <= REDUCE_CHUNK else 0.0


def _stage0_memory(sizes: _Sizes) -> EngineMemory:
    """Stage 0, in fp32 only: the client's optimizer on the module's own weights."""
    whole = sizes.whole
    return EngineMemory(
        weights=FP32 * whole,
        moments=MOMENTS * whole,
        gradients=FP32 * whole,
        incoming_gradient=FP32 * sizes.largest,
        # Parameter by parameter, up to the number of elements that are reduced together.
        step_buffers=FP32 * whole + (FP32 * min(whole, REDUCE_CHUNK) if sizes.ranks > 1 else 0.0),
        load_peak=FP32 * whole,
    )


def _stage1_bf16_memory(sizes: _Sizes) -> EngineMemory:
    """Stage 1 in bf16: DeepSpeed's bf16 optimizer, with whole float32 gradients from the start."""
    whole, share, width = sizes.whole, sizes.share, sizes.width
    gradients = FP32 * whole
    return EngineMemory(
        weights=width * whole,
        master=FP32 * share,
        moments=MOMENTS * share,
        gradients=gradients,
        incoming_gradient=(width + FP32) * sizes.largest,  # as computed, and in float32
        step_buffers=max(_step_reduction_bytes(sizes), sizes.gather_copy_bytes),
        load_peak=max(sizes.flatten_bytes, width * whole + (FP32 + width) * share),
        keeps_gradients=True,
    )


def _stage1_fp32_memory(sizes: _Sizes) -> EngineMemory:
    """Stage 1 in fp32: whole gradients are accumulated, and a rank steps on its share."""
    whole, share, bucket = sizes.whole, sizes.share, sizes.bucket
    return EngineMemory(
        weights=FP32 * whole,
        master=FP32 * share,
        moments=MOMENTS * share,
        gradients=FP32 * whole,
        buckets=FP32 * bucket,
        incoming_gradient=FP32 * sizes.largest,
        # A bucket's gradients are copied into it, and copied once for reduction; then the share is flattened.
        step_buffers=max(
            FP32 * whole + FP32 * bucket, FP32 * share + max(FP32 * share, sizes.norm_bytes), sizes.gather_copy_bytes
        ),
        load_peak=max(sizes.flatten_bytes, FP32 * whole + FP32 * share),
    )


def _stage2_memory(sizes: _Sizes) -> EngineMemory:
    """Stage 2: every backward pass reduces its gradients, and a rank accumulates its share."""
    share, width, bucket = sizes.share, sizes.width, sizes.bucket
    # In bf16 a bucket is reduced into the share; in fp32 each pass has its own share, added at its end.
    own = FP32 * share if width == FP32 else 0.0
    copied = width * bucket + (FP32 * bucket if width < FP32 else 0.0)
    return EngineMemory(
        weights=width * sizes.whole,
        master=FP32 * share,
        moments=MOMENTS * share,
        gradients=FP32 * share,
        buckets=width * bucket,
        incoming_gradient=width * sizes.largest,
        reduce_buffers=own + copied,
        first_bucket=sizes.first_bucket,
        step_buffers=max(FP32 * share + max(own, sizes.norm_bytes), sizes.gather_copy_bytes),
        load_peak=max(
            sizes.flatten_bytes,
            sizes.overwritten_bytes + width * sizes.whole + (FP32 if width == FP32 else FP32 + width) * share,
        ),
    )


def _offloaded_memory(sizes: _Sizes, stage: int) -> EngineMemory:
    """Stages 1 and 2 with optimizer steps on the host, which also keeps its share in the weights' own dtype."""
    whole, share, width, bucket = sizes.whole, sizes.share, sizes.width, sizes.bucket
    # Stage 1 keeps the accumulated gradients of other ranks' shares.
    gradients = FP32 * (whole - share) if stage == 1 else 0.0
    buckets = FP32 * bucket if stage == 1 else width * bucket
    return EngineMemory(
        weights=width * whole,
        gradients=gradients,
        buckets=buckets,
        incoming_gradient=width * sizes.largest,
        reduce_buffers=width * bucket + (FP32 * bucket if width < FP32 else 0.0),
        first_bucket=sizes.first_bucket,
        step_buffers=gradients + buckets + width * share,
        load_peak=sizes.flatten_bytes,
        host=FP32 * share + MOMENTS * share + (2 * FP32 + width) * share,
    )


def _stage3_memory(
    sizes: _Sizes, persistent: int, live: int, offload_optimizer: bool, offload_params: bool
) -> EngineMemory:
    """Stage 3: weights are sharded as well, and gathered on use."""
    whole, share, width, ranks = sizes.whole, sizes.share, sizes.width, sizes.ranks
    spread = _partitioned_bytes(whole, width, ranks, persistent)
    master, moments, gradients = FP32 * share, MOMENTS * share, FP32 * share
    # The host's optimizer holds its gradient in addition to the accumulated one.
    host = (master + moments + 2 * gradients if offload_optimizer else 0.0) + (spread if offload_params else 0.0)
    # A gradient larger than any bucket is reduced alone: original, in float32, and in one piece for all ranks.
    alone = sizes.largest > sizes.bucket
    own = (width if alone else 0) * sizes.largest + (FP32 * sizes.largest if alone and width < FP32 else 0.0)
    finite = (FP32 + 1) * share  # magnitudes, and whether each is infinite
    stepping = 0.0 if offload_optimizer else max(finite, sizes.norm_bytes / ranks, FP32 * min(share, SUB_GROUP_SIZE))
    weights = 0.0 if offload_params else spread
    # The master weights are cast, and the result copied.
    cast = 0.0 if offload_optimizer else master + (master if width < FP32 else 0.0)
    return EngineMemory(
        weights=weights,
        master=0.0 if offload_optimizer else master,
        moments=0.0 if offload_optimizer else moments,
        gradients=0.0 if offload_optimizer else gradients,
        buckets=FP32 * sizes.bucket,
        incoming_gradient=width * sizes.largest + own,
        gathered_weights=_gathered_bytes(whole, width, ranks, live + sizes.largest, offload_params),
        reduce_buffers=FP32 * sizes.bucket * (2 if sizes.has_copies else 1),
        first_bucket=sizes.first_bucket,
        step_buffers=stepping,
        load_peak=weights + max(cast, weights),
        decode_weights=_unpartitioned_bytes(whole, width, ranks, persistent, offload_params),
        host=host,
        keeps_gradients=True,
    )
