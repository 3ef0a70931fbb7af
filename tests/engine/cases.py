"""The engine test cases: run as a script, one process per rank; rank 0 writes the results.

RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python cases.py OUT

All cases share one process group; the tests in this folder check OUT.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ippo_cli.compose.exits import exit_process
from ippo_cli.config.errors import PreemptionRequested, ResumeError, RewardError
from ippo_cli.engine import distributed
from ippo_cli.engine.zero import Engine, StepResult
from ippo_cli.engine.zero_config import zero_config

STAGES = (0, 1, 2, 3)
CASES: dict[str, Callable[[Path], Any]] = {}
VOCAB, WIDTH = 13, 8


def case(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    CASES[function.__name__] = function
    return function


class TinyLM(nn.Module):
    """Next-token logits from the current token; head tied to the embedding, and one parameter too small to shard."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.up = nn.Linear(WIDTH, 16)
        self.norm = nn.LayerNorm(16)
        self.down = nn.Linear(16, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids) + self.down(torch.tanh(self.norm(self.up(self.embed(ids))))))


def rows() -> tuple[Tensor, Tensor]:
    """Eight rows of ids `[8, 6]` and a mask of targets with uneven lengths, the same on every rank."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, VOCAB, (8, 6), generator=generator)
    lengths = torch.tensor([5, 1, 3, 2, 5, 4, 1, 2])
    return ids, torch.arange(5)[None, :] < lengths[:, None]


def share(logits: Tensor, ids: Tensor, mask: Tensor, tokens: int) -> Tensor:
    """Sum over the masked tokens of these rows, divided by the global count."""
    losses = nn.functional.cross_entropy(logits[:, :-1].float().transpose(1, 2), ids[:, 1:], reduction="none")
    return (losses * mask).sum() / tokens


def build(
    *,
    stage: int,
    dtype: str = "fp32",
    optimizer: str = "adamw",
    offload: bool = False,
    clip: float = 0.0,
    seed: int = 0,
    module: nn.Module | None = None,
    frozen: tuple[str, ...] = (),
    lr: float = 0.05,
    decay: float = 0.1,
    beta: float = 0.9,
) -> Engine:
    module = TinyLM(seed) if module is None else module
    for name in frozen:
        module.get_submodule(name).requires_grad_(False)
    params = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    adam = {"lr": lr, "betas": (beta, 0.95), "eps": 1e-8}
    groups = [
        {"params": [p for _, p in params if p.ndim > 1], "weight_decay": decay, **adam},
        {"params": [p for _, p in params if p.ndim == 1], "weight_decay": 0.0, **adam},
        {"params": [], "weight_decay": 0.0, **adam},
    ]
    zero = settings(stage=stage, dtype=dtype, offload=offload, clip=clip)
    return Engine(module, groups, zero=zero, optimizer=optimizer, device="cpu")


def settings(*, stage: int, dtype: str = "fp32", offload: bool = False, clip: float = 0.0) -> dict[str, Any]:
    return zero_config(
        stage=stage,
        dtype=dtype,
        offload_optimizer=offload,
        offload_params=offload and stage == 3,
        reduce_bucket_size=1000,
        prefetch_bucket_size=0,
        persistence_threshold=0,
        # The default exceeds the size of these models: their weights would stay gathered after the first forward,
        # and no test would cover their release at stage 3, whatever the persistence threshold.
        max_live_parameters=0,
        max_grad_norm=clip,
    )


def own_rows() -> tuple[Tensor, Tensor]:
    """This rank's part of the rows: rank 0 has the larger one."""
    ids, mask = rows()
    if distributed.world_size() > 1:
        mine = slice(0, 5) if distributed.rank() == 0 else slice(5, 8)
        ids, mask = ids[mine], mask[mine]
    return ids, mask


def update(
    engine: Engine,
    *,
    micro_batches: int = 1,
    scale: float = 1.0,
    last_rank_scale: float = 1.0,
    after_backward: Callable[[], None] = lambda: None,
) -> StepResult:
    """One step on all eight rows: rank 0 has the larger part, each split into micro-batches, some of them empty."""
    tokens, (ids, mask) = int(rows()[1].sum()), own_rows()
    if distributed.rank() == distributed.world_size() - 1:
        scale *= last_rank_scale
    for part in torch.arange(len(ids)).tensor_split(micro_batches):
        if len(part):
            loss = share(engine(ids[part]), ids[part], mask[part], tokens)
        else:
            loss = share(engine(ids[:1]), ids[:1], mask[:1], tokens) * 0
        engine.backward(loss * scale)
        after_backward()
    return engine.step()


def weights_everywhere(engine: Engine) -> list[dict[str, Tensor]]:
    """The whole weights on each rank."""
    with engine.inference() as module:
        mine = {name: p.detach().clone() for name, p in module.named_parameters()}
    return distributed.gather_objects(mine)


@case
def reference(_: Path) -> Any:
    """One SGD step on all rows in plain torch: (gradient norm, weights) for (scale, clip)."""
    results = {}
    for scale, clip in ((1.0, 0.0), (20.0, 0.0), (20.0, 0.01)):
        module = TinyLM(0)
        ids, mask = rows()
        (share(module(ids), ids, mask, int(mask.sum())) * scale).backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), clip or float("inf"))
        with torch.no_grad():
            for parameter in module.parameters():
                decay = 0.1 * parameter if parameter.ndim > 1 else 0.0
                parameter -= 0.5 * (parameter.grad + decay)
        results[scale, clip] = (norm.item(), module.state_dict())
    return results


@case
def micro_batches(_: Path) -> Any:
    results = {}
    for stage in STAGES:
        for k in (1, 2, 4):
            engine = build(stage=stage, optimizer="sgd", lr=0.5)
            step = update(engine, micro_batches=k)
            results[stage, k] = (step, weights_everywhere(engine), engine.full_state_dict())
            engine.destroy()
    return results


@case
def bf16_micro_batches(_: Path) -> Any:
    results = {}
    for stage in STAGES:
        for k in (1, 4):
            engine = build(stage=stage, optimizer="sgd", lr=0.5, dtype="bf16")
            step = update(engine, micro_batches=k)
            results[stage, k] = (step, engine.full_state_dict())
            engine.destroy()
    return results


@case
def computed_gradients(_: Path) -> Any:
    """By stage, dtype and offloading: the gradient of rows with the longest masks and of the others on each rank,
    computed while a step accumulates gradients, and whether this step differs from one without them."""
    results = {}
    for stage, dtype, offload in (
        *((stage, dtype, False) for stage in (0, 1, 2) for dtype in ("fp32", "bf16")), (2, "fp32", True)
    ):  # fmt: skip
        engine = build(stage=stage, dtype=dtype, offload=offload)
        update(engine)
        parts: list[list[Tensor]] = []

        def measure(engine: Engine = engine, parts: list[list[Tensor]] = parts) -> None:
            (ids, mask), tokens = own_rows(), int(rows()[1].sum())
            for own in (mask.sum(dim=1) > 2, mask.sum(dim=1) <= 2):
                losses = (share(engine(ids), ids, mask & own[:, None], tokens) for _ in range(1))
                parts.append(engine.compute_gradient(losses))

        before = {name: tensor.float() for name, tensor in weights_everywhere(engine)[0].items()}
        step, states = update(engine, micro_batches=2, after_backward=measure), weights_everywhere(engine)
        engine.destroy()
        other = build(stage=stage, dtype=dtype, offload=offload)
        update(other)
        same = update(other, micro_batches=2) == step
        same &= all(torch.equal(own[name], weights_everywhere(other)[0][name]) for own in states for name in own)
        other.destroy()
        results[stage, dtype, offload] = (before, distributed.gather_objects(parts), step, same)
    return results


@case
def changed_parameters(_: Path) -> Any:
    """By stage and dtype: weights after a step, after a change of two parameters, and after one more step."""
    results = {}
    for stage, dtype, offload in (
        *((stage, "fp32", False) for stage in STAGES), (1, "bf16", False), (3, "bf16", False), (2, "fp32", True)
    ):  # fmt: skip
        engine = build(stage=stage, dtype=dtype, offload=offload)
        states = []
        update(engine)
        states.append(weights_everywhere(engine))
        down = engine.module.down
        engine.change_parameters([down.weight, down.bias], lambda values: (2.0 * values[0], values[1] + 0.25))
        states.append(weights_everywhere(engine))
        update(engine)
        states.append(weights_everywhere(engine))
        results[stage, dtype, offload] = states
        engine.destroy()
    return results


class WithUnreached(TinyLM):
    """The same model, with weights that no loss depends on."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.unreached = nn.Linear(WIDTH, WIDTH, bias=False)


@case
def unreached(_: Path) -> Any:
    results = {}
    for stage in STAGES:
        for dtype in ("fp32", "bf16"):
            module = WithUnreached(0)
            before = module.unreached.weight.detach().clone()
            engine = build(stage=stage, optimizer="sgd", lr=0.5, dtype=dtype, module=module)
            update(engine)
            state = engine.full_state_dict()
            results[stage, dtype] = None if state is None else (before, state["unreached.weight"].float())
            engine.destroy()
    return results


@case
def clipping(_: Path) -> Any:
    results = {}
    for stage in STAGES:
        for clip in (0.0, 0.01):
            engine = build(stage=stage, optimizer="sgd", lr=0.5, clip=clip)
            step = update(engine, micro_batches=2, scale=20.0)
            results[stage, clip] = (step, engine.full_state_dict())
            engine.destroy()
    return results


@case
def bad_gradients(_: Path) -> Any:
    """Good, bad, bad, good steps compared with good, good: (bad results, weights kept, same end, last result)."""
    results = {}
    kinds = [(stage, dtype, offload) for stage in STAGES for dtype in ("fp32", "bf16") for offload in (False, True)]
    for stage, dtype, offload in kinds:
        if offload and stage == 0:
            continue
        engine = build(stage=stage, dtype=dtype, offload=offload, clip=0.5)
        update(engine, micro_batches=2)
        before = weights_everywhere(engine)
        bad = [update(engine, micro_batches=2, last_rank_scale=value) for value in (float("nan"), float("inf"))]
        after = weights_everywhere(engine)
        last = update(engine, micro_batches=2)
        end = engine.full_state_dict()
        engine.destroy()
        clean = build(stage=stage, dtype=dtype, offload=offload, clip=0.5)
        for _step in range(2):
            update(clean, micro_batches=2)
        expected = clean.full_state_dict()
        clean.destroy()
        everywhere = distributed.gather_objects((bad, last.applied))
        results[stage, dtype, offload] = (everywhere, bitwise(before, after), bitwise(end, expected))
    return results


def bitwise(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(bitwise(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(bitwise, left, right))
    return left is None and right is None


@case
def continuation(folder: Path) -> Any:
    """Two steps, save, two steps; compared with a differently initialised engine that loads and takes the last two."""
    results = {}
    kinds = [(stage, "fp32", ()) for stage in STAGES] + [(stage, "bf16", ()) for stage in STAGES]
    kinds += [(stage, "fp32", ("up",)) for stage in STAGES]
    for stage, dtype, frozen in kinds:
        here = folder / f"{stage}-{dtype}-{len(frozen)}"
        engine = build(stage=stage, dtype=dtype, clip=0.5, frozen=frozen)
        for _step in range(2):
            update(engine, micro_batches=2)
        engine.module.calls += 3
        engine.module.requires_grad_(False)  # like an adapter that is inactive while saving
        engine.save(here)
        engine.module.requires_grad_(True)
        for name in frozen:
            engine.module.get_submodule(name).requires_grad_(False)
        saved_once = engine.full_state_dict()
        first = [update(engine, micro_batches=2).grad_norm for _step in range(2)]
        expected = engine.full_state_dict()
        engine.destroy()

        other = TinyLM(1)
        for name in frozen:
            other.get_submodule(name).load_state_dict(TinyLM(0).get_submodule(name).state_dict())
        engine = build(stage=stage, dtype=dtype, clip=0.5, frozen=frozen, module=other)
        engine.load(here)
        loaded = engine.full_state_dict()
        second = [update(engine, micro_batches=2).grad_norm for _step in range(2)]
        end = engine.full_state_dict()
        engine.destroy()
        results[stage, dtype, frozen] = (bitwise(saved_once, loaded), bitwise(expected, end), first, second, end)
    return results


@case
def changed_settings(folder: Path) -> Any:
    """Load into an engine with other hyperparameters: (hyperparameters by group, clipping)."""
    results = {}
    for stage in STAGES:
        engine = build(stage=stage, clip=0.5)
        engine.set_learning_rate(0.1)
        update(engine)
        engine.save(folder / str(stage))
        engine.destroy()
        engine = build(stage=stage, clip=0.0, lr=0.02, decay=0.3, beta=0.8)
        engine.load(folder / str(stage))
        groups = engine._optimizer.param_groups
        optimizer = engine._optimizer if stage == 0 else engine._ds.optimizer
        clip = optimizer.max_grad_norm if stage == 0 else optimizer.clip_grad
        results[stage] = ([(group["lr"], group["weight_decay"], group["betas"]) for group in groups], clip)
        engine.destroy()
    return results


@case
def failing_write(folder: Path) -> Any:
    """The last rank cannot write its shard: the exceptions of all ranks."""
    engine = build(stage=1)
    update(engine)
    last = distributed.world_size() - 1
    if distributed.rank() == last:
        (folder / "shards" / f"zero_pp_rank_{last}_mp_rank_00_optim_states.pt").mkdir(parents=True)
    try:
        engine.save(folder)
        error = ""
    except OSError as raised:
        error = type(raised).__name__
    try:
        engine.load(folder)
        reload = ""
    except RuntimeError as raised:
        reload = str(raised)
    engine.destroy()
    return distributed.gather_objects(error), reload


@case
def inference(_: Path) -> Any:
    """Unequal numbers of forwards outside the engine, then training; compared with training only."""
    ids, _mask = rows()
    results = {}
    for stage in STAGES:
        engine = build(stage=stage)
        update(engine)
        engine.module.train()
        engine.module.norm.eval()
        outputs = []
        with engine.inference() as module:
            modes = {part.training for part in module.modules()}
            for _forward in range(1 + 3 * distributed.rank()):
                outputs.append(module(ids))
            outputs.append(module.head(module.embed(ids)))  # a submodule
            with engine.inference() as again:  # nested
                outputs.append(again(ids))
        modes_after = (engine.module.training, engine.module.norm.training, engine.module.up.training)
        with engine.inference(gather="layer") as module:
            by_layer = [module(ids) for _forward in range(3)]
        with torch.no_grad():
            scored = engine(ids)
        update(engine, micro_batches=2)
        with engine.inference() as module:
            again = module(ids)
        state = engine.full_state_dict()
        engine.destroy()

        plain = build(stage=stage)
        update(plain)
        first = plain.full_state_dict()
        update(plain, micro_batches=2)
        second = plain.full_state_dict()
        plain.destroy()
        results[stage] = {
            "modes": (modes, modes_after),
            "grad": any(output.requires_grad for output in [*outputs, *by_layer]),
            "outputs": (outputs[0], outputs[-2], outputs[-1], by_layer[-1], scored, again),
            "states": (first, second, bitwise(state, second)),
        }
    return results


@case
def inference_survives_errors(_: Path) -> Any:
    """After an exception inside inference, the module still trains."""
    results = {}
    for stage in (2, 3):
        engine = build(stage=stage)
        for gather in ("all", "layer"):
            try:
                with engine.inference(gather=gather) as module:
                    module(rows()[0])
                    raise KeyError("decoding failed")
            except KeyError:
                pass
        update(engine)
        clean = build(stage=stage)
        update(clean)
        results[stage] = bitwise(engine.full_state_dict(), clean.full_state_dict())
        engine.destroy()
        clean.destroy()
    return results


@case
def bf16_learning(_: Path) -> Any:
    results = {}
    for stage in STAGES:
        engine = build(stage=stage, dtype="bf16", lr=0.01)
        ids, mask = rows()
        losses = []
        for _step in range(60):
            update(engine)
            with torch.no_grad():
                losses.append(float(share(engine(ids), ids, mask, int(mask.sum()))))
        state = engine.full_state_dict()
        dtypes = {name: tensor.dtype for name, tensor in (state or {}).items()}
        results[stage] = (losses[0], losses[-1], dtypes)
        engine.destroy()
    return results


@case
def neighbours(_: Path) -> Any:
    """Engine A alone, and with training of B in between: A's weights."""
    results = {}
    for stage in STAGES:
        states = []
        for with_b in (False, True):
            a = build(stage=stage, seed=0)
            b = build(stage=stage, seed=1, dtype="bf16") if with_b else None
            for _step in range(3):
                update(a)
                if b is not None:
                    with b.inference() as module:
                        module(rows()[0])
                    update(b, scale=1e3)
            states.append(a.full_state_dict())
            a.destroy()
            if b is not None:
                b.destroy()
        results[stage] = bitwise(*states)
    return results


@case
def untouched_config(_: Path) -> Any:
    """Whether building and using engines leaves the configuration dict unchanged."""
    zero = settings(stage=3)
    for _engine in range(2):
        module = TinyLM(0)
        group = {"params": list(module.parameters()), "lr": 0.1, "weight_decay": 0.0, "betas": (0.9, 0.9), "eps": 1e-8}
        groups = [group]
        engine = Engine(module, groups, zero=zero, device="cpu")
        update(engine)
        engine.destroy()
        assert groups == [group]
        assert len(group["params"]) == 7
    return zero == settings(stage=3)


class View(nn.Module):
    """One adapter on a shared base."""

    def __init__(self, base: nn.Module, adapters: nn.ModuleDict, name: str) -> None:
        super().__init__()
        self.base, self.adapters, self.name = base, adapters, name

    def forward(self, ids: Tensor) -> Tensor:
        return self.base(ids) + self.adapters[self.name](ids)


@case
def shared_base(folder: Path) -> Any:
    """Two adapters on one frozen base with separate engines: is A independent of B; the content of A's shards."""
    results = {}
    for stage in (0, 1, 2):
        states = []
        for with_b in (False, True):
            torch.manual_seed(2)
            base, adapters = TinyLM(0), nn.ModuleDict({name: nn.Embedding(VOCAB, VOCAB) for name in "ab"})
            base.requires_grad_(False)
            engines = {}
            for name in "ab" if with_b else "a":
                adapters.requires_grad_(False)
                adapters[name].requires_grad_(True)
                engines[name] = build(stage=stage, module=View(base, adapters, name))
            adapters.requires_grad_(True)
            for _step in range(3):
                for name, engine in engines.items():
                    update(engine, scale=1.0 if name == "a" else 1e3)
            states.append(adapters["a"].weight.detach().clone())
            engines["a"].save(folder / f"{stage}-{with_b}")
            for engine in engines.values():
                engine.destroy()
        file = folder / f"{stage}-True" / "shards" / "mp_rank_00_model_states.pt"
        names = sorted(torch.load(file, weights_only=True)["module"]) if distributed.is_main() else []
        results[stage] = (bitwise(*states), names)
    return results


@case
def poisoned_shards(folder: Path) -> Any:
    """A file that runs code when unpickled without restrictions."""
    engine = build(stage=0)
    engine.save(folder)
    engine.destroy()
    distributed.barrier()
    if distributed.is_main():
        torch.save({"module": Poison(folder / "ran")}, folder / "shards" / "mp_rank_00_model_states.pt")
    distributed.barrier()
    engine = build(stage=0)
    try:
        engine.load(folder)
        error = ""
    except ResumeError as raised:
        error = str(raised)
    engine.destroy()
    return error, (folder / "ran").exists()


class Poison:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@case
def refusals(_: Path) -> Any:
    """Messages of rejected calls."""
    engine = build(stage=0)
    attempts: dict[str, Callable[[], Any]] = {
        "second group": lambda: distributed.init(device="cpu", timeout_s=60),
        "optimizer": lambda: build(stage=0, optimizer="adam"),
        "gather": lambda: engine.inference(gather="none").__enter__(),
        "other module": lambda: load_other_module(_),
    }
    messages = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except (RuntimeError, ValueError) as error:
            messages[name] = str(error)
    engine.destroy()
    return messages


def load_other_module(folder: Path) -> None:
    engine = build(stage=0)
    engine.save(folder)
    engine.destroy()
    distributed.barrier()
    other = build(stage=0, frozen=("up",))
    try:
        other.load(folder)
    finally:
        other.destroy()


@case
def whole_state(_: Path) -> Any:
    results = {}
    for stage in STAGES:
        engine = build(stage=stage)
        state = engine.full_state_dict()
        ranks = distributed.gather_objects(state is not None)
        tied = state is not None and state["head.weight"] is state["embed.weight"]
        with engine.inference():
            inside = engine.full_state_dict()
        kept = None if state is None else {name: tensor.clone() for name, tensor in state.items()}
        update(engine)
        results[stage] = (ranks, tied, bitwise(state, inside), bitwise(state, kept), TinyLM(0).state_dict(), state)
        engine.destroy()
    return results


@case
def learning_rate(_: Path) -> Any:
    results = {}
    for stage in STAGES:
        engine = build(stage=stage, optimizer="sgd")
        states = [engine.full_state_dict()]
        for factor in (0.0, 0.5, 1.0):
            engine.set_learning_rate(factor)
            update(engine)
            states.append(engine.full_state_dict())
        results[stage] = states
        engine.destroy()
    return results


@case
def collectives(_: Path) -> Any:
    r, n = distributed.rank(), distributed.world_size()
    generator = torch.Generator().manual_seed(3)
    x = 1e4 + torch.randn(11, generator=generator)
    mask = torch.rand(11, generator=generator) < 0.7
    x[~mask] = float("nan")
    mine = slice(0, 11) if n == 1 else slice(0, 8) if r == 0 else slice(8, 11)
    single = torch.arange(4) == (1 if r == 0 else -1)
    source = torch.arange(3.0) + r
    try:
        distributed.check_same_on_ranks(f"hash{min(r, 1)}", "config")
        disagreement = ""
    except RuntimeError as error:
        disagreement = str(error)
    distributed.check_same_on_ranks("hash", "config")
    result = [distributed.claim_log_once(message) for message in ("one", "two", "one")]
    distributed.barrier()
    return distributed.gather_objects(
        {
            "logged": result,
            "where": (r, n, distributed.is_main()),
            "sum": (distributed.all_sum(source), source),
            "max": distributed.all_max(torch.tensor([r, -r])),
            "any": (distributed.any_rank(r == n - 1), distributed.any_rank(False)),
            "rows": distributed.all_gather_rows(torch.full((2 * r + 1, 3), r)),
            "bool_rows": distributed.all_gather_rows(torch.ones(n - 1 - r, dtype=torch.bool)),
            "no_rows": distributed.all_gather_rows(torch.zeros(0, 2)),
            "broadcast": distributed.broadcast_object({"from": r}, src=n - 1),
            "gather": distributed.gather_objects(r * 10),
            "moments": distributed.masked_moments(x[mine], mask[mine]),
            "expected": (x[mask].double().mean(), x[mask].double().var()),
            "one": distributed.masked_moments(torch.arange(4.0), single),
            "none": distributed.masked_moments(torch.arange(4.0), torch.zeros(4)),
            "disagreement": disagreement,
        }
    )


class Wide(nn.Module):
    """Large enough for its tensors to dominate DeepSpeed's overhead."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(40))

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embed(ids)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        return hidden.float().square().mean()


def tensor_bytes() -> int:
    """Bytes of the storages of all tensors created since the last `gc.freeze`, gradients and ZeRO's parts included.

    The minimum of several counts: gloo's threads release reduced tensors some milliseconds after the waiting thread
    continues, 7 of 3000 times on busy processors.
    """
    gc.collect()
    counts = []
    for _ in range(5):
        counts.append(_tensor_bytes())
        time.sleep(0.03)
    return min(counts)


def _tensor_bytes() -> int:
    found = [part for part in gc.get_objects() if type(part) in (Tensor, nn.Parameter)]
    found += [part.grad for part in found if part.is_leaf and part.grad is not None]
    found += [part.ds_tensor for part in found if hasattr(part, "ds_tensor")]
    storages = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in found}
    storages.pop(0, None)
    return sum(storages.values())


@case
def held_bytes(_: Path) -> Any:
    """(stage, dtype, offloaded parts) -> (bucket, bytes after a second backward, bytes after its step)."""
    results = {}
    combinations = [
        (stage, dtype, "") for stage in STAGES for dtype in ("fp32", "bf16") if (stage, dtype) != (0, "bf16")
    ]
    combinations += [(stage, "bf16", "optimizer") for stage in (1, 2, 3)] + [(3, "bf16", "optimizer and params")]
    for stage, dtype, offloaded in combinations:
        gc.collect()
        gc.freeze()
        module = Wide().to(torch.bfloat16 if dtype == "bf16" else torch.float32)
        bucket = 5000
        zero = zero_config(
            stage=stage,
            dtype=dtype,
            offload_optimizer="optimizer" in offloaded,
            offload_params="params" in offloaded,
            reduce_bucket_size=bucket,
            prefetch_bucket_size=0,
            persistence_threshold=0,
            # Gathered weights are released, so that only the shards remain.
            max_live_parameters=0,
            max_grad_norm=1.0,
        )
        adam = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
        engine = Engine(module, [{"params": list(module.parameters()), **adam}], zero=zero, device="cpu")
        ids = torch.arange(8)
        engine.backward(engine(ids))
        engine.step()
        engine.backward(engine(ids))
        during = tensor_bytes()
        engine.step()
        after = tensor_bytes()
        engine.destroy()
        results[stage, dtype, offloaded] = (bucket, during, after)
        del engine, module
    return distributed.world_size(), sum(parameter.numel() for parameter in Wide().parameters()), results


@case
def read_only(_: Path) -> Any:
    """(dtype, offloaded) of engines without an optimizer -> whether each rank's outputs match a plain module, and its
    share of the weights; and the error below stage 3. Ranks start with other weights than rank 0.
    """
    results: dict[Any, Any] = {}
    ids, _ = rows()
    own = ids[: 2 + distributed.rank()]
    for dtype, offload in (("fp32", False), ("bf16", False), ("fp32", True)):
        expected = TinyLM(0).to(torch.bfloat16 if dtype == "bf16" else torch.float32)(own)
        module = TinyLM(distributed.rank()).requires_grad_(False).eval()
        engine = Engine(module, [], zero=settings(stage=3, dtype=dtype, offload=offload), device="cpu")
        same = [torch.equal(engine(own), expected), torch.equal(module(own), expected)]
        for gather in ("all", "layer"):
            with engine.inference(gather=gather) as inside:
                same.append(torch.equal(inside(own), expected))
        left = sum(parameter.numel() for parameter in module.parameters())
        split = [parameter.ds_tensor.numel() for parameter in module.parameters()]  # pyright: ignore
        results[dtype, offload] = distributed.gather_objects((same, left, sum(split)))
        engine.destroy()
    try:
        Engine(TinyLM(0), [], zero=settings(stage=2), device="cpu")
    except ValueError as error:
        results["refused"] = str(error)
    return sum(parameter.numel() for parameter in TinyLM(0).parameters()), results


@case
def leaving_together(_: Path) -> Any:
    """The exceptions of each rank if only the last rank fails, is preempted, or both happen on different ranks."""
    last = distributed.rank() == distributed.world_size() - 1
    found: dict[str, Any] = {}

    def met(name: str, error: BaseException | None) -> None:
        try:
            with distributed.synchronize_errors():
                if error is not None:
                    raise error
        except (Exception, PreemptionRequested) as raised:
            found[name] = (type(raised).__name__, str(raised), getattr(raised, "exit_code", None))
        else:
            found[name] = None

    met("none", None)
    met("error", ValueError("only here") if last else None)
    met("of ours", RewardError("no reward") if last else None)
    met("request", PreemptionRequested() if last else None)
    met("both", PreemptionRequested() if last else ValueError("met again"))
    try:
        with distributed.synchronize_errors((RewardError,)):
            raise KeyError("not among those")  # on every rank
    except KeyError:
        found["others pass"] = distributed.gather_objects(distributed.rank())
    found["steps"] = len(set(distributed.gather_objects(distributed.collective_count()))) == 1
    found["words"] = distributed.exchange_exit_reports(f"words of {distributed.rank()}", 20.0)
    return distributed.gather_objects(found)


@case
def second_training(_: Path) -> Any:
    """A new process group in the same process, and an engine on it."""
    distributed.shutdown()
    alone = distributed.world_size(), distributed.all_sum(torch.ones(1)).item()
    distributed.init(device="cpu", timeout_s=60)
    states = []
    for stage in (0, 3):
        engine = build(stage=stage, optimizer="sgd", lr=0.5)
        update(engine)
        states.append(engine.full_state_dict())
        engine.destroy()
    return alone, states


def main(out: Path) -> None:
    torch.set_num_threads(1)
    ranks = distributed.init(device="cpu", timeout_s=60)
    results: dict[str, Any] = {}
    for name, function in CASES.items():
        gc.freeze()  # DeepSpeed's bf16 optimizer runs the garbage collector four times when built
        results[name] = function(out / name)
    if ranks.rank == 0:
        torch.save(results, out / "results.pt")
    distributed.shutdown()
    exit_process(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
