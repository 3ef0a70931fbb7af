"""What one DeepSpeed engine holds, in bytes per rank: read in its source, and compared with it by a test."""

from __future__ import annotations

from dataclasses import dataclass

REDUCE_CHUNK = 500_000_000  # elements that DeepSpeed copies together where it reduces gradients at the step
SUB_GROUP_SIZE = 1_000_000_000  # elements that stage 3 steps on at once, see `zero_config`
MOMENTS = 8  # AdamW's two, in float32
FP32 = 4
FP64 = 8  # in which the norm of a gradient is taken at stages 1 to 3, of one parameter after another


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Bytes on one rank: what stands from one update to the next, and what a pass, a step and loading add."""

    weights: float
    master: float = 0.0  # float32 weights that the optimizer steps on; fp32 models have a copy of theirs as well
    moments: float = 0.0  # AdamW's, from the first step on
    gradients: float = 0.0  # added up over micro-batches
    buckets: float = 0.0  # in which gradients travel, from a backward pass on
    incoming_gradient: float = 0.0  # of the largest parameter's gradient, before it is added to what there is of it
    gathered: float = 0.0  # stage 3: whole weights that a forward holds beside the spread ones
    reduce_buffers: float = 0.0  # a backward pass, from where a first bucket is full: copies of it, and what they leave
    first_bucket: float = 1.0  # the share of a backward pass until then
    step_buffers: float = 0.0  # a step, from reducing at it to the last norm and copy; with gradients that do not stay
    loading: float = 0.0  # while DeepSpeed takes the model, with the weights that it is made into
    decode_weights: float = 0.0  # stage 3: whole weights beside the spread ones
    host: float = 0.0  # in the machine's memory instead, of what is offloaded
    keeps_gradients: bool = False  # whether gradients and buckets are held between updates as well

    @property
    def optimizer(self) -> float:
        return self.master + self.moments

    @property
    def transient_gradients(self) -> float:
        """Gradients that are there from the first backward pass to the step alone."""
        return 0.0 if self.keeps_gradients else self.gradients

    @property
    def standing(self) -> float:
        """On the device all the time, once the first step is taken."""
        return self.weights + self.optimizer + (self.gradients + self.buckets if self.keeps_gradients else 0.0)

    @property
    def resident_at_start(self) -> float:
        """On the device before the first step."""
        return self.standing - self.moments

    def updating(self, activations: float, *, has_several: bool) -> float:
        """What an update adds at its greatest moment, to what stands.

        `activations` are what one micro-batch's forward leaves for its backward pass; `several`: whether a step has
        more micro-batches than one, so that there are gradients already when a forward begins.
        """
        buckets = 0.0 if self.keeps_gradients else self.buckets
        before = self.transient_gradients if has_several else 0.0
        begun = before + buckets + self.gathered + activations + self.incoming_gradient
        # Activations go as gradients come.
        left = activations * (1.0 - self.first_bucket)
        reduced = before + buckets + self.gathered + left + self.reduce_buffers
        done = self.transient_gradients + buckets + self.gathered + self.incoming_gradient
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
    """Of a model of so many parameters, `width` bytes each, at the stage that its engine really runs at.

    `on_host`: whether ranks compute on CPUs, where gloo copies what it gathers and what it reduces and scatters.
    `bucket` is the size of its reduction buckets, `largest` that of its largest parameter, `persistent` the number of
    parameters that stage 3 keeps whole, and `live` how many others a pass keeps whole, but for the last of them, all in
    elements.
    """
    sizes = _Sizes(
        whole=float(parameters),
        share=parameters / ranks,
        width=width,
        bucket=float(min(bucket, parameters)),
        largest=float(largest),
        ranks=ranks,
        copies=on_host and ranks > 1,
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
    """Of a model without an optimizer that is spread as stage 3 spreads weights; see `engine_memory`."""
    spread = _partitioned_bytes(float(parameters), width, ranks, persistent)
    return EngineMemory(
        weights=0.0 if offload_params else spread,
        gathered=_gathered_bytes(float(parameters), width, ranks, live + largest, offload_params),
        loading=spread,
        decode_weights=_unpartitioned_bytes(float(parameters), width, ranks, persistent, offload_params),
        host=spread if offload_params else 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """In elements, but for the width."""

    whole: float
    share: float
    width: int
    bucket: float
    largest: float
    ranks: int
    copies: bool  # whether a collective makes copies of its own

    @property
    def flatten_bytes(self) -> float:
        """Bytes while weights are copied into one tensor: both are there."""
        return 2 * self.width * self.whole

    @property
    def gather_copy_bytes(self) -> float:
        """Bytes of the copy that is made of all weights where ranks gather the stepped ones."""
        return self.width * self.whole if self.copies else 0.0

    @property
    def overwritten_bytes(self) -> float:
        """Bytes of weights in a mapped file that become a rank's own as rank 0's are written into them.

        Those that are cast when they are loaded, as to float32, are its own from the start.
        """
        return self.width * self.whole if self.copies and self.width < FP32 else 0.0

    @property
    def norm(self) -> float:
        """Bytes of the largest gradient of a rank's share in float64."""
        return FP64 * min(self.largest, self.share)

    @property
    def first_bucket(self) -> float:
        return self.bucket / self.whole


def _partitioned_bytes(whole: float, width: int, ranks: int, persistent: int) -> float:
    return width * (whole / ranks + persistent * (1.0 - 1.0 / ranks))


def _gathered_bytes(whole: float, width: int, ranks: int, at_once: float, offload_params: bool) -> float:
    """Up to `at_once` elements: what may be kept, and the parameter that goes beyond it, by use or fetched ahead.

    One rank has its weights whole, and reads them where they are.
    """
    return width * min(whole, at_once) if ranks > 1 or offload_params else 0.0


def _unpartitioned_bytes(whole: float, width: int, ranks: int, persistent: int, offload_params: bool) -> float:
    return width * (whole - persistent) if ranks > 1 or offload_params else 0.0


def _step_reduction_bytes(sizes: _Sizes) -> float:
    """A copy of gradients that are reduced together; a tensor of more than that alone is reduced in place.

    One rank alone reduces nothing.
    """
    return FP32 * sizes.whole if sizes.ranks > 1 and sizes.whole <= REDUCE_CHUNK else 0.0


def _stage0_memory(sizes: _Sizes) -> EngineMemory:
    """Stage 0, in fp32 alone: the client's own optimizer on the module's own weights."""
    whole = sizes.whole
    return EngineMemory(
        weights=FP32 * whole,
        moments=MOMENTS * whole,
        gradients=FP32 * whole,
        incoming_gradient=FP32 * sizes.largest,
        # Parameter by parameter, until there are as many together as are reduced at once.
        step_buffers=FP32 * whole + (FP32 * min(whole, REDUCE_CHUNK) if sizes.ranks > 1 else 0.0),
        loading=FP32 * whole,
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
        incoming_gradient=(width + FP32) * sizes.largest,  # as it comes, and as it is added up
        step_buffers=max(_step_reduction_bytes(sizes), sizes.gather_copy_bytes),
        loading=max(sizes.flatten_bytes, width * whole + (FP32 + width) * share),
        keeps_gradients=True,
    )


def _stage1_fp32_memory(sizes: _Sizes) -> EngineMemory:
    """Stage 1 in fp32: gradients are added up whole, and a rank steps on its share."""
    whole, share, bucket = sizes.whole, sizes.share, sizes.bucket
    return EngineMemory(
        weights=FP32 * whole,
        master=FP32 * share,
        moments=MOMENTS * share,
        gradients=FP32 * whole,
        buckets=FP32 * bucket,
        incoming_gradient=FP32 * sizes.largest,
        # A bucket's gradients move into it, and are copied once to be reduced; then the share is made one tensor.
        step_buffers=max(
            FP32 * whole + FP32 * bucket, FP32 * share + max(FP32 * share, sizes.norm), sizes.gather_copy_bytes
        ),
        loading=max(sizes.flatten_bytes, FP32 * whole + FP32 * share),
    )


def _stage2_memory(sizes: _Sizes) -> EngineMemory:
    """Stage 2: every backward pass reduces its gradients, and a rank adds up its share."""
    share, width, bucket = sizes.share, sizes.width, sizes.bucket
    # In bf16 a bucket is reduced into the share; in fp32 a pass has a share of its own, added when it ends.
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
        step_buffers=max(FP32 * share + max(own, sizes.norm), sizes.gather_copy_bytes),
        loading=max(
            sizes.flatten_bytes,
            sizes.overwritten_bytes + width * sizes.whole + (FP32 if width == FP32 else FP32 + width) * share,
        ),
    )


def _offloaded_memory(sizes: _Sizes, stage: int) -> EngineMemory:
    """Stages 1 and 2 whose steps the host takes: it also keeps the part it steps on in the weights' own type."""
    whole, share, width, bucket = sizes.whole, sizes.share, sizes.width, sizes.bucket
    # Stage 1 leaves what other ranks step on where it was added up.
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
        loading=sizes.flatten_bytes,
        host=FP32 * share + MOMENTS * share + (2 * FP32 + width) * share,
    )


def _stage3_memory(
    sizes: _Sizes, persistent: int, live: int, offload_optimizer: bool, offload_params: bool
) -> EngineMemory:
    """Stage 3: weights are spread as well, each of the parts where it is wanted."""
    whole, share, width, ranks = sizes.whole, sizes.share, sizes.width, sizes.ranks
    spread = _partitioned_bytes(whole, width, ranks, persistent)
    master, moments, gradients = FP32 * share, MOMENTS * share, FP32 * share
    # What steps in the machine's memory has its own gradient beside the one that is added up there.
    host = (master + moments + 2 * gradients if offload_optimizer else 0.0) + (spread if offload_params else 0.0)
    # What no bucket holds is reduced alone: as it comes, in float32, and in one piece for all ranks.
    alone = sizes.largest > sizes.bucket
    own = (width if alone else 0) * sizes.largest + (FP32 * sizes.largest if alone and width < FP32 else 0.0)
    finite = (FP32 + 1) * share  # magnitudes, and whether each of them is infinite
    stepping = 0.0 if offload_optimizer else max(finite, sizes.norm / ranks, FP32 * min(share, SUB_GROUP_SIZE))
    weights = 0.0 if offload_params else spread
    # The master's weights are cast, and the cast ones copied.
    cast = 0.0 if offload_optimizer else master + (master if width < FP32 else 0.0)
    return EngineMemory(
        weights=weights,
        master=0.0 if offload_optimizer else master,
        moments=0.0 if offload_optimizer else moments,
        gradients=0.0 if offload_optimizer else gradients,
        buckets=FP32 * sizes.bucket,
        incoming_gradient=width * sizes.largest + own,
        gathered=_gathered_bytes(whole, width, ranks, live + sizes.largest, offload_params),
        reduce_buffers=FP32 * sizes.bucket * (2 if sizes.copies else 1),
        first_bucket=sizes.first_bucket,
        step_buffers=stepping,
        loading=weights + max(cast, weights),
        decode_weights=_unpartitioned_bytes(whole, width, ranks, persistent, offload_params),
        host=host,
        keeps_gradients=True,
    )
