"""One DeepSpeed engine, ZeRO 0 to 3: forward, backward, step, gather, save.

Only this module imports deepspeed, and only when the first engine is built, since the import selects CPU or GPU.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import glob
import io
import logging
import math
import os
import pickle
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from ippo_cli.config.errors import ResumeError
from ippo_cli.engine import distributed
from ippo_cli.engine.optimizers import make_client_optimizer
from ippo_cli.engine.reshard import VALUE, Shards, refresh_persistent, restore_shards, write_parameter
from ippo_cli.engine.tensor_parallel import gather_layers, split_layers

M = TypeVar("M", bound=nn.Module)

TAG = "shards"  # the folder that DeepSpeed creates inside the caller's
HYPERPARAMETERS = ("lr", "weight_decay", "betas", "eps")

_world: tuple[Any, Any] = None, None  # torch's default process group, and the group of DeepSpeed that replaces it


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Result of an optimizer step: `grad_norm` is global, before clipping, and inf for a skipped step."""

    applied: bool
    grad_norm: float


class Engine(Generic[M]):
    """A module, its optimizer and its gradients, sharded over the ranks as `zero` configures (see `zero_config`).

    Each entry of `param_groups` holds `params`, `lr`, `weight_decay`, `betas` and `eps`. Parameters in no group are
    neither trained nor saved. Several engines may coexist; every rank builds and calls them in the same order, with the
    same number of forwards and backwards. Call `distributed.init` first.

    The ranks are those of the group that is active when the engine is built, and whenever it is used.

    At stage 3 weights are cast, moved to the device and sharded one parameter at a time: a rank with memory-mapped
    weights never has all of them in its own memory. A stage 3 module without groups is read-only and needs no
    optimizer.
    """

    module: M

    def __init__(
        self,
        module: M,
        param_groups: list[dict[str, Any]],
        *,
        zero: dict[str, Any],
        optimizer: Literal["adamw", "sgd"] = "adamw",
        device: torch.device | str,
    ) -> None:
        device = torch.device(device)
        deepspeed = _import_deepspeed(device)
        config = copy.deepcopy(zero)  # initialize modifies it
        groups = [dict(group, params=list(group["params"])) for group in param_groups]
        groups = [group for group in groups if group["params"]]  # as in DeepSpeed, so that indices agree
        self.module = module
        self._stage: int = config["zero_optimization"]["stage"]
        self._offloads = config["zero_optimization"]["offload_optimizer"] is not None
        self._owned = {id(param) for group in groups for param in group["params"]}
        names = {id(param): name for name, param in module.named_parameters()}
        self._names = [names[id(param)] for group in groups for param in group["params"]]
        self._hyperparameters = [{key: group[key] for key in HYPERPARAMETERS} for group in groups]
        self._max_grad_norm: float = config["gradient_clipping"]
        self._factor = 1.0
        self._frozen_groups: frozenset[int] = frozenset()  # indices of the groups that steps leave unchanged
        self._is_gathered = False
        self._is_bypassed = False  # whether forwards call the module alone
        # With tensor parallelism the ranks of a group are one replica of the module.
        self._replicas = distributed.world_size() // config.get("tensor_parallel", {}).get("autotp_size", 1)
        self._can_load = True
        self.updates = 0  # applied steps and loads: changes when the weights change
        if self._stage == 0:
            config["gradient_clipping"] = 0.0  # the guarded optimizer clips, since it computes the norm
        if not groups and self._stage < 3:
            raise ValueError(f"an engine without parameters to train needs stage 3, not {self._stage}")
        self._optimizer = None
        if groups:
            self._optimizer = make_client_optimizer(
                optimizer, groups, max_grad_norm=self._max_grad_norm if self._stage == 0 else None, device=device
            )
        if self._stage == 3:
            _partition_module(module, config, device)
        with contextlib.redirect_stdout(io.StringIO()):  # its bf16 optimizer prints memory
            _select_ranks()
            self._ds, *_ = deepspeed.initialize(model=module, optimizer=self._optimizer, config=config)
        if getattr(self._ds, "first_dataloader_check", None) is not None:
            self._ds.first_dataloader_check.remove()  # it compares inputs that may only be tensors
        self._is_split = bool(split_layers(module))
        self._ds.module_state_dict = self._trained_state
        self._ds._copy_recovery_script = lambda folder: None
        # On one rank there is nothing to reduce: DeepSpeed would flatten all gradients and copy them back. ZeRO's
        # own optimizers need that call, since it also collects the gradients of their step.
        self._alone = distributed.world_size() == 1 and not hasattr(self._ds.optimizer, "reduce_gradients")
        if self._alone and self._stage < 2:
            self._ds.enable_backward_allreduce = False
        if groups:  # parameters in no group are not saved
            self._ds.checkpoint_engine.load = _read_file

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward, through the engine; outputs may be passed to `backward`."""
        return self.module(*args, **kwargs) if self._is_bypassed else self._ds(*args, **kwargs)

    def train(self, mode: bool = True) -> None:
        """Set the module's mode, as `nn.Module.train` does."""
        self.module.train(mode)

    def eval(self) -> None:
        self.train(False)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of one micro-batch; any number of calls before one `step`, equal on every rank.

        `loss` is this rank's share of the objective: a sum over its own rows, divided by counts over all ranks and
        micro-batches. DeepSpeed averages gradients over replicas, so the share is multiplied by their number here. A
        rank without rows takes part with `0 * loss`. With tensor parallelism the ranks of a group have the same rows.
        """
        _select_ranks()
        self._ds.backward(loss * self._replicas, scale_wrt_gas=False)

    def compute_gradient(self, losses: Iterable[Tensor]) -> list[Tensor]:
        """The gradient of the sum of losses over all ranks, in float32, by trained parameter in the module's order.

        A loss is this rank's share of the objective, as in `backward`, and may be computed when it is requested. The
        accumulated gradients and DeepSpeed's state remain. Only at stages 0 to 2, without tensor or sequence
        parallelism. Collective: every rank has the result.
        """
        if self._stage == 3 or self._is_split:
            raise RuntimeError("an engine that shards its weights has no gradients of whole parameters")
        params = [param for param in self.module.parameters() if id(param) in self._owned]
        total = [torch.zeros(param.shape, dtype=torch.float32, device=param.device) for param in params]
        with _suspend_hooks(self._hooks()), self._bypass():
            for loss in losses:
                found = torch.autograd.grad(loss, params, allow_unused=True)
                for part, gradient in zip(total, found, strict=True):
                    if gradient is not None:
                        part += gradient
        for place, part in enumerate(total):  # one at a time, so that no second copy of all exists
            total[place] = distributed.all_sum(part)
        return total

    @contextlib.contextmanager
    def _bypass(self) -> Iterator[None]:
        self._is_bypassed = True
        try:
            yield
        finally:
            self._is_bypassed = False

    def step(self) -> StepResult:
        """Take one optimizer step on the accumulated gradients, and clear them.

        A step with a non-finite global gradient norm is skipped: on every rank, parameters and optimizer state remain
        bitwise unchanged.
        """
        _select_ranks()
        if self._alone and self._stage == 0:  # in bf16 all parameters have fp32 gradients
            self._fill_missing_gradients()
        self._ds.step()
        if not self._ds.was_step_applied():
            if self._offloads and self._stage < 3:
                # DeepSpeed does not clear its fp32 accumulation after an overflow, and would skip every later step
                # as well.
                self._ds.optimizer.averaged_gradients.clear()
            return StepResult(applied=False, grad_norm=math.inf)
        self.updates += 1
        if self._frozen_groups:
            self._reset_unused_moments()
        return StepResult(applied=True, grad_norm=float(self._ds.get_global_grad_norm()))

    def _fill_missing_gradients(self) -> None:
        """Set missing gradients to zero, as the reduction over ranks does, so that weight decay applies to them."""
        assert self._optimizer is not None
        for group in self._optimizer.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    param.grad = torch.zeros_like(param)

    def _reset_unused_moments(self) -> None:
        """Reset the step count of moments that have received no gradient yet.

        Adam counts every step for its bias correction: after n steps without gradients the first one with a gradient
        would be up to 3.2 times the learning rate. A tensor never holds moments of several groups.
        """
        assert self._optimizer is not None
        for state in self._optimizer.state.values():
            if "step" in state and not state["exp_avg_sq"].any():
                state["step"].zero_()

    def set_learning_rate(self, factor: float, frozen_groups: Collection[int] = ()) -> None:
        """Set every group's learning rate to its base times `factor`; the caller computes schedules.

        Steps leave the `frozen_groups` (by index) unchanged, weight decay included; the caller's loss gives them no
        gradient.
        """
        self._factor, self._frozen_groups = factor, frozenset(frozen_groups)
        assert self._optimizer is not None
        for number, (group, base) in enumerate(zip(self._optimizer.param_groups, self._hyperparameters, strict=True)):
            group["lr"] = 0.0 if number in self._frozen_groups else base["lr"] * factor

    @contextlib.contextmanager
    def scoring(self) -> Iterator[None]:
        """Forwards without gradients, through the engine and in eval mode, of rows that only this rank has.

        Entering and leaving is collective. At stage 3 every rank runs the same number of forwards.
        """
        self.eval()
        with torch.no_grad(), self.whole_layers():
            yield

    @contextlib.contextmanager
    def whole_layers(self) -> Iterator[None]:
        """Layers that tensor parallelism splits are whole on every rank inside. Entering is collective."""
        if not self._is_split or self._is_gathered:
            yield
            return
        with gather_layers(self.module):
            self._is_gathered = True
            try:
                yield
            finally:
                self._is_gathered = False

    @contextlib.contextmanager
    def inference(self, gather: Literal["all", "layer"] = "all") -> Iterator[M]:
        """The plain module in eval mode without gradients; each rank may call it any number of times.

        At stage 3, `all` gathers every weight on every rank and removes DeepSpeed's hooks, since these would release
        the weights after the first forward. `layer` keeps the hooks: weights are gathered layer by layer, which leaves
        device memory for more rows, or for a model larger than the device, and every rank must run the same number of
        forwards. Entering and leaving is collective.
        """
        modes = [(part, part.training) for part in self.module.modules()]
        self.module.eval()
        try:
            with torch.no_grad(), self._gather_weights(gather):
                yield self.module
        finally:
            for part, training in modes:
                part.training = training

    @contextlib.contextmanager
    def _gather_weights(self, gather: Literal["all", "layer"]) -> Iterator[None]:
        if gather not in ("all", "layer"):
            raise ValueError(f"gather={gather}; use one of all layer")
        if self._stage < 3 or self._is_gathered:
            with self.whole_layers():
                yield
            return
        # Weights that the last forward left gathered or in flight would be miscounted.
        self._ds.optimizer.empty_partition_cache()
        if gather == "layer":
            try:
                yield
            finally:
                self._ds.optimizer.empty_partition_cache()
            return
        with _gather_parameters(list(self.module.parameters())), _suspend_hooks(self._hooks()):
            self._is_gathered = True
            try:
                yield
            finally:
                self._is_gathered = False

    def _hooks(self) -> list[Any]:
        """The handles of all DeepSpeed hooks on the module."""
        root = [self._ds.module_forward_pre_hook, self._ds.module_forward_post_hook]
        if self._stage < 3:
            return root
        # Without an optimizer, this is the partitioner itself.
        offload = getattr(self._ds.optimizer, "parameter_offload", self._ds.optimizer)
        return [*root, offload.fwd_pre_hook, *offload.forward_hooks, *offload.backward_hooks]

    def gather_parameter(self, parameter: nn.Parameter) -> contextlib.AbstractContextManager[None]:
        """Inside, a parameter that stage 3 shards is whole on every rank. Collective."""
        if self._stage < 3 or self._is_gathered:
            return contextlib.nullcontext()
        return _gather_parameters([parameter])

    @torch.no_grad()
    def change_parameters(
        self, parameters: Sequence[nn.Parameter], compute: Callable[[list[Tensor]], Sequence[Tensor]]
    ) -> None:
        """Replace whole trained parameters between steps by `compute` of their float32 values. Collective.

        Optimizer states remain. `compute` gives the same result on every rank.
        """
        assert self._optimizer is not None
        _select_ranks()
        if self._stage == 3:  # weights that the last forward left gathered would not be written
            self._ds.optimizer.empty_partition_cache()
        for param, values in zip(parameters, compute([_read_fp32(param) for param in parameters]), strict=True):
            write_parameter(param, {VALUE: values.flatten()}, self._ds.optimizer, self._optimizer, distributed.rank())
        refresh_persistent(self._ds.optimizer)

    def full_state_dict(self) -> dict[str, Tensor] | None:
        """The module's full state on rank 0, as new CPU tensors in the module's dtype; None on other ranks.

        Collective. Names of tied parameters share one tensor, as in the module.
        """
        result: dict[str, Tensor] = {}
        copies: dict[int, Tensor] = {}
        with self.whole_layers():
            for name, tensor in self.module.state_dict(keep_vars=True).items():
                if id(tensor) not in copies:
                    is_parameter = isinstance(tensor, nn.Parameter)
                    with self.gather_parameter(tensor) if is_parameter else contextlib.nullcontext():
                        copies[id(tensor)] = tensor.detach().to("cpu", copy=True) if distributed.is_main() else tensor
                result[name] = copies[id(tensor)]
        return result if distributed.is_main() else None

    def save(self, folder: Path | str) -> list[Path]:
        """Write this engine's shards below `folder`, flushed to disk; return the files of this rank. Collective.

        Contains the parameters of the param groups, the module's buffers and the optimizer's state; the caller restores
        frozen parameters. A file error is raised only on its rank, after all ranks are done: use `gather_objects` to
        notify the others. It may be another type than OSError: `torch.save` has its own.
        """
        folder = Path(folder)
        written: list[Path] = []
        failures: list[Exception] = []
        try:
            (folder / TAG).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            failures.append(error)
        if not distributed.any_rank(bool(failures)):  # a rank that returned here would block the others below
            self._ds.checkpoint_engine.save = lambda state_dict, path: _write_file(state_dict, path, written, failures)
            self._can_load = False
            _select_ranks()
            self._ds.save_checkpoint(str(folder), tag=TAG, save_latest=False, exclude_frozen_parameters=True)
        if failures:
            raise failures[0]
        return written

    def load(self, folder: Path | str) -> None:
        """Load what `save` wrote, with the same world size; only on an engine that has not saved yet. Collective.

        Learning rates and other hyperparameters remain those of this engine.
        """
        if not self._can_load:
            raise RuntimeError("an engine that has saved cannot load (ZeRO 3 would mix up its shards); build a new one")
        _select_ranks()
        with contextlib.redirect_stdout(io.StringIO()):  # DeepSpeed prints here too
            self._ds._get_all_ckpt_names = self._shard_files
            path, _ = self._ds.load_checkpoint(str(folder), tag=TAG, custom_load_fn=self._load_module_state)
        if path is None:
            raise FileNotFoundError(f"{folder}: no shards of an engine here")
        self._restore_hyperparameters()

    def load_resharded(self, folder: Path | str) -> None:
        """Load shards of another world size, at any stage. Every rank reads all files."""
        if not self._can_load:
            raise RuntimeError("an engine that has saved cannot load; build a new one")
        assert self._optimizer is not None
        shards = Shards(Path(folder) / TAG, self._names, lambda path: _read_file(path, mapped=True))
        restore_shards(self.module, shards, self._ds.optimizer, self._optimizer, distributed.rank())
        self._restore_hyperparameters()

    def _shard_files(self, folder: str, tag: str) -> list[str]:
        """The files that DeepSpeed globs for; works for folder names with brackets."""
        return sorted(glob.glob(self._ds._get_ckpt_name(glob.escape(folder), tag, mp_placeholder="*")))

    def _restore_hyperparameters(self) -> None:
        self.updates += 1
        assert self._optimizer is not None
        for group, hyperparameters in zip(self._optimizer.param_groups, self._hyperparameters, strict=True):
            group.update({key: value for key, value in hyperparameters.items() if key in group})
        self.set_learning_rate(self._factor, self._frozen_groups)
        if self._stage > 0:
            self._ds.optimizer.clip_grad = self._max_grad_norm

    def _trained_state(self, **_: Any) -> dict[str, Tensor]:
        """The trained parameters and the buffers: what DeepSpeed writes as the module's state."""
        state = self.module.state_dict(keep_vars=True)
        return {
            name: tensor.detach()
            for name, tensor in state.items()
            if id(tensor) in self._owned or not isinstance(tensor, nn.Parameter)
        }

    def _load_module_state(self, src: dict[str, Tensor], dst: nn.Module) -> None:
        expected = self._trained_state()
        if src.keys() != expected.keys():
            odd = sorted(src.keys() ^ expected.keys())
            raise RuntimeError(f"the checkpoint is of another module: {len(odd)} names differ, such as {odd[:3]}")
        dst.load_state_dict(src, strict=False)

    def destroy(self) -> None:
        """Remove DeepSpeed from the module and free its memory; the engine is unusable afterwards."""
        for hook in self._hooks():
            hook.remove()
        self._ds.destroy()
        if self._stage == 3:
            from deepspeed.runtime.zero import parameter_offload

            stack = parameter_offload.FWD_MODULE_STACK
            stack[:] = [module for module in stack if module is not self.module]
        del self._ds, self._optimizer
        gc.collect()


def _import_deepspeed(device: torch.device) -> Any:
    """Import DeepSpeed for this device type, quietly, without compilation, on the current process group."""
    if not torch.distributed.is_initialized():
        raise RuntimeError("an engine needs a process group; call distributed.init() first")
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    if device.type == "cuda":  # DeepSpeed uses LOCAL_RANK as the GPU number
        os.environ["LOCAL_RANK"] = str(torch.cuda.current_device() if device.index is None else device.index)
    else:
        os.environ.setdefault("LOCAL_RANK", "0")
    import deepspeed
    import deepspeed.ops
    from deepspeed.accelerator import get_accelerator
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    accelerator = get_accelerator()
    assert accelerator is not None
    if accelerator.device_name() != device.type:
        raise RuntimeError(f"device={device.type}, but DeepSpeed runs on {accelerator.device_name()} already")
    # No op is marked compatible, so none is compiled: the shared-memory reduction needs g++ and ninja.
    deepspeed.ops.__compatible_ops__ = {}  # pyright: ignore[reportAttributeAccessIssue]
    from deepspeed.runtime.zero import partitioned_param_coordinator

    deepspeed.comm.barrier = _wait_for_group
    partitioned_param_coordinator.assert_ints_same_as_other_ranks = _check_same_order
    _select_ranks()
    return deepspeed


def _select_ranks() -> None:
    """Make the current group the world of DeepSpeed, which looks its process groups up in module variables."""
    global _world
    from deepspeed.utils import groups

    group = distributed.current_group()
    if group.is_world and torch.distributed.group.WORLD is not _world[0]:  # its own clone would have another timeout
        _world = torch.distributed.group.WORLD, torch.distributed.new_group(timeout=distributed.collective_timeout())
    groups._WORLD_GROUP = _world[1] if group.is_world else group.process_group
    # Read for tensor parallelism only.
    groups._TENSOR_MODEL_PARALLEL_GROUP, groups._DATA_PARALLEL_GROUP = group.parallel_group, group.replicas
    groups._MODEL_PARALLEL_GROUP, groups.mpu = group.parallel_group, None


def _wait_for_group(group: Any = None, **_: Any) -> None:
    """Replaces DeepSpeed's barrier: an engine waits for all ranks while it is built and saved."""
    torch.distributed.barrier(group=distributed.current_group().process_group if group is None else group)


def _check_same_order(numbers: list[int]) -> None:
    """Replaces DeepSpeed's check that ranks use layers and parameters in the same order, which asks rank 0 of the
    world, and compares numbers that count the layers of all engines of a process.
    """
    from_first = [number - min(numbers) for number in numbers]
    if distributed.broadcast_object(from_first) != from_first:
        raise RuntimeError("ranks of one engine use its layers in different orders")


def _partition_module(module: nn.Module, config: dict[str, Any], device: torch.device) -> None:
    """Shard the module's weights as stage 3 does, from rank 0's values, one parameter at a time.

    DeepSpeed would first cast and move the whole module, and then overwrite the weights of other ranks with rank 0's:
    for memory-mapped weights each page that is written becomes private memory.
    """
    from deepspeed.runtime.zero import Init

    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, buffer.to(device))
    dtype = torch.bfloat16 if config["bf16"]["enabled"] else torch.float32
    group = distributed.current_group().process_group
    init = Init(module=nn.Module(), config_dict_or_path=copy.deepcopy(config), data_parallel_group=group)
    for param in module.parameters():
        values = param.data.flatten()
        own = dtype if values.is_floating_point() else values.dtype
        if values.dtype != own or values.device != device:
            param.data = torch.empty(param.shape, dtype=own, device=device)
        init._convert_to_deepspeed_param(param)
        param.partition()  # pyright: ignore[reportAttributeAccessIssue]
        distributed.scatter(values, param.ds_tensor, device)  # pyright: ignore[reportAttributeAccessIssue]


def _read_fp32(param: nn.Parameter) -> Tensor:
    """A whole parameter as the optimizer has it: in float32, whatever the model's dtype. Collective."""
    from deepspeed.utils import safe_get_full_fp32_param

    values = safe_get_full_fp32_param(param)
    return param.detach().float() if values is None else values


def _gather_parameters(params: list[nn.Parameter]) -> contextlib.AbstractContextManager[None]:
    """Gather whole weights for reading, on every rank; unsharded parameters are unaffected."""
    from deepspeed.runtime.zero import GatheredParameters

    return GatheredParameters(params, modifier_rank=None)


@contextlib.contextmanager
def _suspend_hooks(handles: list[Any]) -> Iterator[None]:
    """Remove hooks, and restore them in their old order; hooks of others are untouched."""
    ours = {handle.id for handle in handles}
    tables = {id(table): table for handle in handles if (table := handle.hooks_dict_ref()) is not None}
    before = [(table, list(table.items())) for table in tables.values()]
    for table, hooks in before:
        for key in [key for key, _ in hooks if key in ours]:
            del table[key]
    try:
        yield
    finally:
        for table, hooks in before:
            now = dict(table)
            table.clear()
            table.update({key: hook for key, hook in hooks if key in ours or key in now})
            table.update(now)


def _write_file(state: dict[str, Any], path: str, written: list[Path], failures: list[Exception]) -> None:
    """Write one file to disk; record a failure instead of raising, since other ranks wait at a barrier."""
    try:
        with open(path, "wb") as file:
            torch.save(_replace_enums(state), file)
            file.flush()
            os.fsync(file.fileno())
        written.append(Path(path))
    except Exception as error:  # on a full disk torch raises RuntimeError, not OSError
        failures.append(error)


def _replace_enums(state: Any) -> Any:
    """Replace members of enums by their values: Python before 3.11.4 pickles them as calls, which is not data."""
    if isinstance(state, Enum):
        return state.value
    if type(state) is dict:
        return {key: _replace_enums(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(_replace_enums, state))
    return state


def _read_file(path: str, map_location: Any = None, mapped: bool = False) -> dict[str, Any]:
    """Read one file as data: unpickle only the three classes that DeepSpeed writes.

    Raises `ResumeError` for a file with other objects, which could run code when they are read, and for one that is
    damaged.
    """
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    try:
        with torch.serialization.safe_globals([LossScaler, ZeroStageEnum, fragment_address]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:  # its message is advice to read the file without protection
        found = re.search(r"GLOBAL (\S+)", str(error))
        rule = f"contains {found[1]}, which is not data" if found else "contains more than data"
        raise ResumeError(
            f"{path} {rule}, and was not read, because it could run code: another program wrote or changed it; remove "
            "its checkpoint, so that an earlier one is used, or start a new run"
        ) from None
    except (RuntimeError, EOFError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ResumeError(
            f"{path} cannot be read ({reason:.200}); remove its checkpoint, so that an earlier one is used"
        ) from error
