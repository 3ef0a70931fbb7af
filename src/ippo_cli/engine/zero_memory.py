"""What one DeepSpeed engine holds, in bytes per rank: read in its source, and compared with it by a test."""

from __future__ import annotations

from dataclasses import dataclass

REDUCED_AT_ONCE = 500_000_000  # elements that DeepSpeed copies together where it reduces gradients at the step
SUB_GROUP = 1_000_000_000  # elements that stage 3 steps on at once, see `zero_config`
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
    arriving: float = 0.0  # of the largest parameter's gradient, before it is added to what there is of it
    gathered: float = 0.0  # stage 3: whole weights that a forward holds beside the spread ones
    reducing: float = 0.0  # a backward pass, from where a first bucket is full: copies of it, and what they leave
    first_bucket: float = 1.0  # the share of a backward pass until then
    stepping: float = 0.0  # a step, from reducing at it to the last norm and copy; with gradients that do not stay
    loading: float = 0.0  # while DeepSpeed takes the model, with the weights that it is made into
    decoding: float = 0.0  # stage 3: whole weights beside the spread ones
    host: float = 0.0  # in the machine's memory instead, of what is offloaded
    gradients_stay: bool = False  # whether gradients and buckets are held between updates as well

    @property
    def optimizer(self) -> float:
        return self.master + self.moments

    @property
    def fleeting(self) -> float:
        """Gradients that are there from the first backward pass to the step alone."""
        return 0.0 if self.gradients_stay else self.gradients

    @property
    def standing(self) -> float:
        """On the device all the time, once the first step is taken."""
        return self.weights + self.optimizer + (self.gradients + self.buckets if self.gradients_stay else 0.0)

    @property
    def loaded(self) -> float:
        """On the device before the first step."""
        return self.standing - self.moments

    def updating(self, activations: float, *, several: bool) -> float:
        """What an update adds at its greatest moment, to what stands.

        `activations` are what one micro-batch's forward leaves for its backward pass; `several`: whether a step has
        more micro-batches than one, so that there are gradients already when a forward begins.
        """
        buckets = 0.0 if self.gradients_stay else self.buckets
        before = self.fleeting if several else 0.0
        begun = before + buckets + self.gathered + activations + self.arriving
        # Activations go as gradients come.
        left = activations * (1.0 - self.first_bucket)
        reduced = before + buckets + self.gathered + left + self.reducing
        done = self.fleeting + buckets + self.gathered + self.arriving
        return max(begun, reduced, done, self.stepping)


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
        return _own_optimizer(sizes)
    if stage == 3:
        return _spread_weights(sizes, persistent, live, offload_optimizer, offload_params)
    if offload_optimizer:
        return _offloaded_optimizer(sizes, stage)
    if stage == 1 and width < FP32:
        return _bf16_optimizer(sizes)
    return _gathered_gradients(sizes) if stage == 1 else _spread_gradients(sizes)


def read_memory(
    parameters: int, *, width: int, ranks: int, largest: int, persistent: int, live: int, offload_params: bool
) -> EngineMemory:
    """Of a model without an optimizer that is spread as stage 3 spreads weights; see `engine_memory`."""
    spread = _spread(float(parameters), width, ranks, persistent)
    return EngineMemory(
        weights=0.0 if offload_params else spread,
        gathered=_gathered(float(parameters), width, ranks, live + largest, offload_params),
        loading=spread,
        decoding=_whole(float(parameters), width, ranks, persistent, offload_params),
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
    def flattened(self) -> float:
        """Bytes while weights are copied into one tensor: both are there."""
        return 2 * self.width * self.whole

    @property
    def renewed(self) -> float:
        """Bytes of the copy that is made of all weights where ranks gather the stepped ones."""
        return self.width * self.whole if self.copies else 0.0

    @property
    def overwritten(self) -> float:
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


def _spread(whole: float, width: int, ranks: int, persistent: int) -> float:
    return width * (whole / ranks + persistent * (1.0 - 1.0 / ranks))


def _gathered(whole: float, width: int, ranks: int, at_once: float, offload_params: bool) -> float:
    """Up to `at_once` elements: what may be kept, and the parameter that goes beyond it, by use or fetched ahead.

    One rank has its weights whole, and reads them where they are.
    """
    return width * min(whole, at_once) if ranks > 1 or offload_params else 0.0


def _whole(whole: float, width: int, ranks: int, persistent: int, offload_params: bool) -> float:
    return width * (whole - persistent) if ranks > 1 or offload_params else 0.0


def _reduced_at_step(sizes: _Sizes) -> float:
    """A copy of gradients that are reduced together; a tensor of more than that alone is reduced in place.

    One rank alone reduces nothing.
    """
    return FP32 * sizes.whole if sizes.ranks > 1 and sizes.whole <= REDUCED_AT_ONCE else 0.0


def _own_optimizer(sizes: _Sizes) -> EngineMemory:
    """Stage 0, in fp32 alone: the client's own optimizer on the module's own weights."""
    whole = sizes.whole
    return EngineMemory(
        weights=FP32 * whole,
        moments=MOMENTS * whole,
        gradients=FP32 * whole,
        arriving=FP32 * sizes.largest,
        # Parameter by parameter, until there are as many together as are reduced at once.
        stepping=FP32 * whole + (FP32 * min(whole, REDUCED_AT_ONCE) if sizes.ranks > 1 else 0.0),
        loading=FP32 * whole,
    )


def _bf16_optimizer(sizes: _Sizes) -> EngineMemory:
    """Stage 1 in bf16: DeepSpeed's bf16 optimizer, with whole float32 gradients from the start."""
    whole, share, width = sizes.whole, sizes.share, sizes.width
    gradients = FP32 * whole
    return EngineMemory(
        weights=width * whole,
        master=FP32 * share,
        moments=MOMENTS * share,
        gradients=gradients,
        arriving=(width + FP32) * sizes.largest,  # as it comes, and as it is added up
        stepping=max(_reduced_at_step(sizes), sizes.renewed),
        loading=max(sizes.flattened, width * whole + (FP32 + width) * share),
        gradients_stay=True,
    )


def _gathered_gradients(sizes: _Sizes) -> EngineMemory:
    """Stage 1 in fp32: gradients are added up whole, and a rank steps on its share."""
    whole, share, bucket = sizes.whole, sizes.share, sizes.bucket
    return EngineMemory(
        weights=FP32 * whole,
        master=FP32 * share,
        moments=MOMENTS * share,
        gradients=FP32 * whole,
        buckets=FP32 * bucket,
        arriving=FP32 * sizes.largest,
        # A bucket's gradients move into it, and are copied once to be reduced; then the share is made one tensor.
        stepping=max(FP32 * whole + FP32 * bucket, FP32 * share + max(FP32 * share, sizes.norm), sizes.renewed),
        loading=max(sizes.flattened, FP32 * whole + FP32 * share),
    )


def _spread_gradients(sizes: _Sizes) -> EngineMemory:
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
        arriving=width * sizes.largest,
        reducing=own + copied,
        first_bucket=sizes.first_bucket,
        stepping=max(FP32 * share + max(own, sizes.norm), sizes.renewed),
        loading=max(
            sizes.flattened,
            sizes.overwritten + width * sizes.whole + (FP32 if width == FP32 else FP32 + width) * share,
        ),
    )


def _offloaded_optimizer(sizes: _Sizes, stage: int) -> EngineMemory:
    """Stages 1 and 2 whose steps the host takes: it also keeps the part it steps on in the weights' own type."""
    whole, share, width, bucket = sizes.whole, sizes.share, sizes.width, sizes.bucket
    # Stage 1 leaves what other ranks step on where it was added up.
    gradients = FP32 * (whole - share) if stage == 1 else 0.0
    buckets = FP32 * bucket if stage == 1 else width * bucket
    return EngineMemory(
        weights=width * whole,
        gradients=gradients,
        buckets=buckets,
        arriving=width * sizes.largest,
        reducing=width * bucket + (FP32 * bucket if width < FP32 else 0.0),
        first_bucket=sizes.first_bucket,
        stepping=gradients + buckets + width * share,
        loading=sizes.flattened,
        host=FP32 * share + MOMENTS * share + (2 * FP32 + width) * share,
    )


def _spread_weights(
    sizes: _Sizes, persistent: int, live: int, offload_optimizer: bool, offload_params: bool
) -> EngineMemory:
    """Stage 3: weights are spread as well, each of the parts where it is wanted."""
    whole, share, width, ranks = sizes.whole, sizes.share, sizes.width, sizes.ranks
    spread = _spread(whole, width, ranks, persistent)
    master, moments, gradients = FP32 * share, MOMENTS * share, FP32 * share
    # What steps in the machine's memory has its own gradient beside the one that is added up there.
    host = (master + moments + 2 * gradients if offload_optimizer else 0.0) + (spread if offload_params else 0.0)
    # What no bucket holds is reduced alone: as it comes, in float32, and in one piece for all ranks.
    alone = sizes.largest > sizes.bucket
    own = (width if alone else 0) * sizes.largest + (FP32 * sizes.largest if alone and width < FP32 else 0.0)
    finite = (FP32 + 1) * share  # magnitudes, and whether each of them is infinite
    stepping = 0.0 if offload_optimizer else max(finite, sizes.norm / ranks, FP32 * min(share, SUB_GROUP))
    weights = 0.0 if offload_params else spread
    # The master's weights are cast, and the cast ones copied.
    cast = 0.0 if offload_optimizer else master + (master if width < FP32 else 0.0)
    return EngineMemory(
        weights=weights,
        master=0.0 if offload_optimizer else master,
        moments=0.0 if offload_optimizer else moments,
        gradients=0.0 if offload_optimizer else gradients,
        buckets=FP32 * sizes.bucket,
        arriving=width * sizes.largest + own,
        gathered=_gathered(whole, width, ranks, live + sizes.largest, offload_params),
        reducing=FP32 * sizes.bucket * (2 if sizes.copies else 1),
        first_bucket=sizes.first_bucket,
        stepping=stepping,
        loading=weights + max(cast, weights),
        decoding=_whole(whole, width, ranks, persistent, offload_params),
        host=host,
        gradients_stay=True,
    )
