"""The parts of `gpu.py` that measure updates without a run: optimizer steps by form of attention, and the head.

Weights are random and made on the device; nothing is written. Rows are padded, packed with attention in groups, or
packed with attention by one kernel; packed rows with and without shared prefixes.
"""

from __future__ import annotations

import gc
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from gpu_runs import SHAPES, Given, count_kernels_and_waits, measure_peak, shortest_seconds
from material import Shape, make_model
from torch import Tensor

BATCHES = ((64, 128), (64, 512), (16, 4096))  # rows of an optimizer step, tokens of the longest
RESPONSES_PER_PROMPT = 8  # a prompt has a quarter of the tokens of the longest row
FORMS = {  # attention of packed rows (None: padded rows), and whether prefixes are shared
    "padded": (None, False),
    "groups": ("sdpa", False),
    "varlen": ("varlen", False),
    "groups, shared": ("sdpa", True),
    "varlen, shared": ("varlen", True),
}
HEAD_TOKENS = {"cuda": 8192, "cpu": 64}
PART_S = 150  # no further batch begins after that
GIB = 2**30
SETTINGS = (
    "task=sorting",
    "algorithm=ppo",
    "algorithm.ppo_epochs=1",
    "actor=full",
    "actor.model=random",
    "actor.dtype=bf16",
    "actor.learning_rate=1e-6",
    "algorithm.kl.loss.coef=0",
)


def update(given: Given) -> dict[str, Any]:
    """Measure one optimizer step of the policy for each model, batch and form of attention: seconds, MFU, peak memory
    and the plan's, and for the first batch the number of kernels and of synchronisations.
    """
    flops, end = measure_peak(given.device).flops, time.perf_counter() + PART_S
    batches = BATCHES if given.device == "cuda" else ((given.rows, given.tokens),)
    found: dict[str, Any] = {}
    with _one_rank(given.device), _collect_messages("ippo_cli.models") as messages:
        for name in given.shapes:
            shape = replace(SHAPES[name], context=max(tokens for _, tokens in batches))
            if time.perf_counter() > end:
                found[name] = {"skipped": f"{PART_S} s had passed"}
                continue
            learner, measure, found[name] = _make_learner(shape, given.device), None, {}
            for number, (rows, tokens) in enumerate(batches):
                if time.perf_counter() > end:
                    found[name]["skipped"] = f"batches from {rows} x {tokens} on: {PART_S} s had passed"
                    break
                measure = _StepMeasurement(learner, shape, given.device, rows, tokens, flops)
                found[name][f"{rows} x {tokens}"] = {
                    form: measure.run(form, counts=number == 0 and given.device == "cuda") for form in FORMS
                }
                print(json.dumps(found), flush=True)
            del learner, measure
            _free_memory(given.device)
    return found | {"messages": messages}


@contextmanager
def _collect_messages(logger: str) -> Iterator[list[str]]:
    """Collect the warnings of a logger: a model that cannot use the kernel attends in groups, with a warning."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger(logger).addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger(logger).removeHandler(handler)


@contextmanager
def _one_rank(device: str) -> Iterator[None]:
    """The process group of a single rank, which an engine needs."""
    from ippo_cli.engine import distributed

    distributed.init(device=device, timeout_s=60)
    try:
        yield
    finally:
        distributed.shutdown()


def _configure() -> Any:
    """The configuration of a run with the settings of this part; it reads no model."""
    from ippo_cli.compose.load import build_config, compose_node, resolve_config

    return build_config(resolve_config(compose_node(SETTINGS)))


def _make_learner(shape: Shape, device: str) -> Any:
    """The learner of a policy with random bf16 weights, as a run builds it."""
    from ippo_cli.agents.learner import Learner, param_groups
    from ippo_cli.agents.references import make_engine
    from ippo_cli.algorithms.objectives import PolicyObjective
    from ippo_cli.engine.rank_group import world_group
    from ippo_cli.models.actor import Policy
    from ippo_cli.models.load import disable_dropout
    from ippo_cli.models.packing import enable_packing

    config = _configure()
    actor = next(iter(config.task.agents.values())).actor
    with torch.device(device):
        lm = make_model(shape).to(torch.bfloat16)
    disable_dropout(lm)
    policy = Policy(lm)
    policy.packs = enable_packing(lm.base_model)
    engine = make_engine(
        policy, param_groups(policy.trained_module, actor), config.deepspeed, actor.dtype, actor, torch.device(device)
    )
    return Learner(
        name="solo",
        agent_names=("solo",),
        group=world_group(),
        local_engine=engine,
        objective=PolicyObjective(
            config=config.algorithm,
            response_budget=shape.context,
            temperature=1.0,
            chunk_tokens=_count_chunk_tokens(shape),
            reference=None,
            warmup=0,
        ),
        optimizer=actor,
        mini_batch_size=1 << 30,
        ppo_epochs=1,
        micro_batch_tokens=config.deepspeed.micro_batch_tokens,
        forward_batch_tokens=config.deepspeed.forward_batch_tokens,
        share_prefixes=False,
    )


def _count_chunk_tokens(shape: Shape) -> int:
    from ippo_cli.planning.trained_memory import LOGIT_CHUNK_ELEMENTS

    return max(LOGIT_CHUNK_ELEMENTS // shape.vocabulary, 1)


class _StepMeasurement:
    """Optimizer steps of one batch, for several forms of attention."""

    def __init__(self, learner: Any, shape: Shape, device: str, rows: int, tokens: int, flops: float) -> None:
        self._learner, self._device, self._flops = learner, device, flops
        self._rollout, self._targets = make_rows(shape, device, rows, tokens)
        lengths = (self._rollout.prompt_mask.sum(dim=1) + self._rollout.length).tolist()
        self._tokens = sum(lengths)
        # Forward and backward: six operations per weight and token, plus attention products.
        attention = 12 * shape.layers * shape.hidden * sum(length**2 for length in lengths) / 2
        self._operations = 6 * shape.parameters * self._tokens + attention
        self._planned_bytes = _plan_bytes(learner, rows, tokens, self._rollout.response_ids.shape[1])

    def run(self, form: str, *, counts: bool) -> dict[str, Any]:
        """Measure steps of one form; MFU counts whole sequences, also where prefixes are shared."""
        from ippo_cli.models.packing import PACKED

        attention, shares = FORMS[form]
        module = self._learner.engine.module
        if attention is not None and not module.packs:
            return {"skipped": "the model does not support packed rows"}
        packs, config = module.packs, module.lm.base_model.config
        name = config._attn_implementation
        module.packs, self._learner.share_prefixes = attention is not None, shares
        config._attn_implementation_internal = PACKED[attention or "sdpa"]
        try:
            return self._measure(counts=counts)
        except torch.OutOfMemoryError as error:
            return {"skipped": f"out of memory: {str(error)[:80]}"}
        finally:
            module.packs, config._attn_implementation_internal = packs, name
            _free_memory(self._device)

    def _measure(self, *, counts: bool) -> dict[str, float]:
        self._step()
        if self._device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = shortest_seconds(self._step, self._device, repeat=1)
        found = {
            "seconds": seconds,
            "tokens_per_second": self._tokens / seconds,
            "mfu": self._operations / seconds / self._flops,
        }
        if self._device == "cuda":
            found |= {"peak_gib": torch.cuda.max_memory_allocated() / GIB, "planned_gib": self._planned_bytes / GIB}
        return found | count_kernels_and_waits(self._step) if counts else found

    def _step(self) -> None:
        from ippo_cli.training.minibatches import iterate_steps
        from ippo_cli.training.update import update_learner
        from ippo_cli.types import StepContext

        context = StepContext(seed=0, iteration=0, num_iterations=1)
        steps = iterate_steps(self._learner, {"solo": self._rollout}, {"solo": self._targets}, context)
        update_learner(self._learner, steps, context)


def _plan_bytes(learner: Any, rows: int, tokens: int, response_tokens: int) -> float:
    """The bytes that `mode=plan` computes for weights, optimizer and one training pass."""
    from ippo_cli.config.schema import Dtype
    from ippo_cli.models.shape import actor_shape
    from ippo_cli.planning.trained_memory import EngineInput, EngineModel, estimate_trained_model

    read = EngineInput(
        max_row_tokens=tokens, response_tokens=response_tokens, rows=rows, rows_per_step=rows, has_scoring=False
    )
    plan = estimate_trained_model(
        _configure(),
        EngineModel(
            name="solo",
            shape=actor_shape(learner.engine.module.lm),
            dtype=Dtype.bf16,
            has_checkpoints=False,
            is_actor=False,
            trained_agents=1,
        ),
        read,
        1,
        "cuda",
    )
    return plan.memory.resident + plan.update_bytes


def make_rows(shape: Shape, device: str, rows: int, tokens: int) -> tuple[Any, Any]:
    """A rollout and its targets: prompts of a quarter of `tokens`, which several rows have in common, and responses of
    random lengths, from a quarter to three quarters.
    """
    from ippo_cli.types import Rollout, Targets

    random = torch.Generator().manual_seed(0)
    width = tokens - tokens // 4
    prompts = torch.randint(4, shape.vocabulary, (-(-rows // RESPONSES_PER_PROMPT), tokens // 4), generator=random)
    length = torch.randint(tokens // 4, width + 1, (rows,), generator=random)
    length[0] = width
    mask = (torch.arange(width) < length[:, None]).to(device)
    zeros = torch.zeros(rows, width, device=device)
    prompt_ids = prompts.repeat_interleave(RESPONSES_PER_PROMPT, dim=0)[:rows].to(device)
    rollout = Rollout(
        prompt_ids=prompt_ids,
        prompt_mask=torch.ones_like(prompt_ids, dtype=torch.bool),
        response_ids=torch.randint(4, shape.vocabulary, (rows, width), generator=random).to(device),
        response_mask=mask,
        turn=torch.where(mask, 0, -1),
        length=length.to(device),
        logprobs=zeros,
        behavior_logprobs=zeros,
        finished=torch.ones(rows, dtype=torch.bool, device=device),
        texts=[""] * rows,
    )
    targets = Targets(
        rewards=zeros,
        values=zeros,
        final_values=zeros[:, 0],
        ref_logprobs=zeros,
        advantages=torch.where(mask, 1e-3, 0.0),
        returns=zeros,
        loss_mask=mask,
        value_mask=mask,
        behavior_weights=torch.ones_like(zeros),
        sample_counts=torch.ones(rows, dtype=torch.long, device=device),
        positive=torch.zeros(rows, dtype=torch.bool, device=device),
    )
    return rollout, targets


def head(given: Given) -> dict[str, Any]:
    """Measure log-probabilities from hidden states, forward and backward, without the model: ours, and fused
    functions of torch and Liger where they can be imported.
    """
    found: dict[str, Any] = {}
    for name in given.shapes:
        shape, count = SHAPES[name], HEAD_TOKENS[given.device]
        place = {"device": given.device, "dtype": torch.bfloat16}
        hidden = torch.randn(count, shape.hidden, **place).requires_grad_()
        weight = (torch.randn(shape.vocabulary, shape.hidden, **place) / shape.hidden**0.5).requires_grad_()
        ids = torch.randint(shape.vocabulary, (count,), device=given.device)
        works = _list_heads(hidden, weight, ids, _count_chunk_tokens(shape))
        found[name] = {key: _measure_head(work, (hidden, weight), given.device) for key, work in works.items()}
        print(json.dumps(found), flush=True)
    return found


def _list_heads(hidden: Tensor, weight: Tensor, ids: Tensor, chunk_tokens: int) -> dict[str, Callable[[], Tensor]]:
    """Functions that return the negative sum of log-probabilities, by name."""
    from ippo_cli.formulas.logprobs import selected_logprobs

    def ours(*, with_entropy: bool) -> Tensor:
        logprobs, entropy = selected_logprobs(
            hidden,
            lambda states: states @ weight.T,
            ids,
            temperature=1.0,
            chunk_tokens=chunk_tokens,
            with_entropy=with_entropy,
        )
        return -logprobs.sum() if entropy is None else -logprobs.sum() - 1e-3 * entropy.sum()

    works: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: ours(with_entropy=False),
        "ours, with entropy": lambda: ours(with_entropy=True),
    }
    if (fused := getattr(torch.nn.functional, "linear_cross_entropy", None)) is not None:
        works["torch"] = lambda: fused(hidden, weight, ids, reduction="sum")
    if find_spec("liger_kernel") is not None:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss  # pyright: ignore[reportMissingImports]

        loss = LigerFusedLinearCrossEntropyLoss(reduction="sum")
        works["Liger"] = lambda: loss(weight, hidden, ids)
    return works


def _measure_head(work: Callable[[], Tensor], leaves: Sequence[Tensor], device: str) -> dict[str, Any]:
    """Seconds of a forward and backward pass, the peak of the memory that it adds, and the loss per token."""

    def run() -> Tensor:
        loss = work()
        torch.autograd.grad(loss, leaves)
        return loss.detach()

    try:
        result = {"seconds": shortest_seconds(run, device, repeat=3), "loss": run().item() / len(leaves[0])}
        if device == "cuda":
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            run()
            result["added_gib"] = (torch.cuda.max_memory_allocated() - before) / GIB
        return result
    except Exception as error:  # another project's function may fail in any way
        return {"skipped": repr(error)[:120]}
    finally:
        _free_memory(device)


def _free_memory(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
