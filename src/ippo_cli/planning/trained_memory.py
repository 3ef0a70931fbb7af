"""Memory of a trained model on one rank: its engine, and its forward and training passes. Sizes are in bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ippo_cli.config.schema import Config, Dtype, Mode
from ippo_cli.engine.zero_config import bucket_elements, effective_stage, live_elements
from ippo_cli.engine.zero_memory import EngineMemory, engine_memory, inference_memory
from ippo_cli.models.packing import uses_fp32_attention
from ippo_cli.models.shape import ModelShape
from ippo_cli.planning.agent_shapes import bytes_per_weight
from ippo_cli.planning.model_memory import TrainedModel
from ippo_cli.planning.pass_memory import activation_bytes, forward_bytes, logit_bytes

FP32_BYTES = 4
LOGIT_CHUNK_ELEMENTS = 1 << 26  # see `agents/build.py`
# Bytes per token and bin of a categorical value head: float32 outputs, in states, and their softmax; in training also
# masked, with log-probabilities, targets and gradients.
BIN_BYTES, TRAINED_BIN_BYTES = 12, 28
# `mode=pilot` measures gradients of parts of its sample, and keeps them in host memory.
PILOT_PARTS = 16
MAX_PILOT_BYTES = 2**31  # of a rank's gradients of all parts; `FEWEST_PILOT_PARTS` if they would be more
FEWEST_PILOT_PARTS = 4  # fewer have no interval


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInput:
    """The input sizes of an engine on one rank."""

    max_row_tokens: int  # maximum tokens of a row
    response_tokens: int  # of these, the ones with logits
    rows: int  # per iteration
    rows_per_step: int  # rows per optimizer step, of a model-parallel group
    has_scoring: bool  # whether it also runs forward passes without gradients
    value_bins: int = 0  # outputs of a categorical value head per token
    gradient_parts: int = 0  # gradients in float32 that are kept at once, sharded over the ranks

    @property
    def response_fraction(self) -> float:
        return self.response_tokens / self.max_row_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """A model that an engine trains."""

    name: str
    shape: ModelShape
    dtype: Dtype
    has_checkpoints: bool  # whether activations are recomputed in the backward pass
    is_actor: bool
    trained_agents: int  # that share these weights

    @property
    def width(self) -> int:
        """Bytes per weight."""
        return bytes_per_weight(self.dtype)


def estimate_trained_model(
    config: Config, model: EngineModel, read: EngineInput, ranks: int, device: str
) -> TrainedModel:
    """The memory of a model on one of the `ranks` that train it."""
    shape, width, per_replica = model.shape, model.width, config.deepspeed.tensor_parallel
    # Bytes of a rank's whole linear maps beside its shares, outside of training passes.
    gathered = float(width * shape.split_elements) if per_replica > 1 else 0.0
    parameters = shape.trained_parameters - shape.split_elements * (per_replica - 1) // per_replica
    memory = _estimate_engine(config, model, parameters, ranks, device)
    training_bytes = _estimate_training_pass(config, model, read, device)
    parts, copies = 0.0, read.gradient_parts / ranks + _count_pilot_copies(config, model, parameters, ranks, device)
    if copies:  # a gradient of a micro-batch, the sum of one part, and this rank's shares of all
        parts = parameters * (width + FP32_BYTES * (1 + copies))
    return TrainedModel(
        name=model.name,
        shape=shape,
        bytes_per_weight=width,
        memory=replace(memory, decode_weights=memory.decode_weights + gathered),
        scoring_bytes=_estimate_forward_pass(config, model, read) + gathered if read.has_scoring else 0.0,
        training_bytes=training_bytes,
        measuring_bytes=training_bytes + parts if parts else 0.0,
        has_several_micro_batches=read.max_row_tokens * read.rows_per_step > _micro_batch_limit(config, read),
        is_actor=model.is_actor,
        is_stage3=engine_stage(config, width, ranks) == 3,
    )


def has_whole_gradients(config: Config) -> bool:
    """Whether engines can compute gradients of whole parameters."""
    deepspeed = config.deepspeed
    return deepspeed.stage < 3 and deepspeed.ranks_per_group == 1


def count_pilot_parts(gradient_bytes: float) -> int:
    """Parts of a pilot's sample with gradients; `gradient_bytes`: those of one part and all agents on a rank."""
    return PILOT_PARTS if PILOT_PARTS * gradient_bytes <= MAX_PILOT_BYTES else FEWEST_PILOT_PARTS


def _count_pilot_copies(config: Config, model: EngineModel, parameters: int, ranks: int, device: str) -> float:
    """Copies of a policy's trained weights in float32 that `mode=pilot` keeps on a rank beside one gradient.

    On a GPU: this rank's share of that gradient; the others are in host memory. On the CPU: its shares of the gradients
    of all parts and agents, and the whole weights before a step and their change.
    """
    if config.mode is not Mode.pilot or not model.is_actor or config.deepspeed.ranks_per_group > 1:
        return 0.0
    shares = model.trained_agents / ranks if has_whole_gradients(config) else 0.0
    if device != "cpu":
        return min(shares, 1 / ranks)
    return count_pilot_parts(FP32_BYTES * parameters * shares) * shares + 2


def _estimate_engine(config: Config, model: EngineModel, parameters: int, ranks: int, device: str) -> EngineMemory:
    """Weights, gradients and optimizer states; `parameters`: the trained ones of a rank's share of the model."""
    deepspeed, shape, width = config.deepspeed, model.shape, model.width
    memory = engine_memory(
        parameters,
        stage=engine_stage(config, width, ranks),
        width=width,
        ranks=ranks // deepspeed.tensor_parallel,
        bucket=bucket_elements(deepspeed.reduce_bucket_size, parameters),
        largest=max(shape.sizes if shape.adapter is None else shape.adapter),
        persistent=shape.count_smaller_than(deepspeed.persistence_threshold),
        live=live_elements(deepspeed.max_live_parameters, shape.trained_parameters),
        offload_optimizer=deepspeed.offload_optimizer,
        offload_params=deepspeed.offload_params,
        on_host=device == "cpu",
    )
    return _add_frozen_weights(config, memory, shape, width, ranks) if shape.frozen_parameters else memory


def _micro_batch_limit(config: Config, read: EngineInput) -> int:
    """Tokens of a micro-batch; a row longer than the token budget is a separate one."""
    return max(config.deepspeed.micro_batch_tokens, read.max_row_tokens)


def _chunk_tokens(config: Config, shape: ModelShape) -> int:
    """Tokens with logits at the same time."""
    return config.deepspeed.logit_chunk_tokens or max(LOGIT_CHUNK_ELEMENTS // shape.vocabulary, 1)


def _estimate_forward_pass(config: Config, model: EngineModel, read: EngineInput) -> float:
    """Bytes of a forward pass without gradients."""
    shape, width, entropy = model.shape, model.width, config.algorithm.entropy_coef != 0.0
    limit = max(config.deepspeed.forward_batch_tokens, read.max_row_tokens)
    scored = min(limit, read.max_row_tokens * read.rows)
    logits = min(_chunk_tokens(config, shape), scored * read.response_fraction) * shape.vocabulary
    forward = scored * forward_bytes(shape, width)
    forward += scored * read.value_bins * BIN_BYTES
    forward += logits * logit_bytes(width, trains=False, entropy=entropy)
    return forward


def _estimate_training_pass(config: Config, model: EngineModel, read: EngineInput, device: str) -> float:
    """Bytes of a forward and backward pass of a micro-batch."""
    deepspeed, shape, width = config.deepspeed, model.shape, model.width
    tokens = min(_micro_batch_limit(config, read), read.max_row_tokens * read.rows_per_step)
    micro = tokens / deepspeed.sequence_parallel
    activations = activation_bytes(
        shape,
        width,
        checkpointed=model.has_checkpoints,
        in_fp32=uses_fp32_attention(device, width < 4, read.max_row_tokens),
        longest=read.max_row_tokens,
        tensor_parallel=deepspeed.tensor_parallel,
    )
    logits = min(_chunk_tokens(config, shape), micro * read.response_fraction) * shape.vocabulary
    return (
        micro * activations
        + micro * read.value_bins * TRAINED_BIN_BYTES
        + logits * logit_bytes(width, trains=True, entropy=config.algorithm.entropy_coef != 0.0)
    )


def _add_frozen_weights(
    config: Config, memory: EngineMemory, shape: ModelShape, width: int, ranks: int
) -> EngineMemory:
    """An engine's memory with its frozen parameters: weights without gradients and optimizer states."""
    if engine_stage(config, width, ranks) < 3:
        weights = float(width * shape.frozen_parameters)
        return replace(memory, weights=memory.weights + weights, load_peak=memory.load_peak + weights)
    deepspeed, sizes = config.deepspeed, {"width": width, "ranks": ranks, "largest": max(shape.sizes)}
    own, all_weights = (
        inference_memory(
            parameters,
            persistent=persistent,
            live=live_elements(deepspeed.max_live_parameters, shape.saved_parameters),
            offload_params=deepspeed.offload_params,
            **sizes,
        )
        for parameters, persistent in (
            (shape.frozen_parameters, 0),
            (shape.saved_parameters, shape.count_smaller_than(deepspeed.persistence_threshold)),
        )
    )
    return replace(
        memory,
        weights=memory.weights + own.weights,
        load_peak=memory.load_peak + own.load_peak,
        host=memory.host + own.host,
        gathered_weights=all_weights.gathered_weights,
        decode_weights=all_weights.decode_weights,
    )


def engine_stage(config: Config, width: int, ranks: int) -> int:
    """The ZeRO stage of an engine with `width` bytes per weight."""
    deepspeed = config.deepspeed
    return effective_stage(
        deepspeed.stage,
        bf16=width < 4,
        ranks=ranks,
        offload_optimizer=deepspeed.offload_optimizer,
        tensor_parallel=deepspeed.tensor_parallel,
    )
