"""One learner on one DeepSpeed engine, ZeRO 0 to 3: forward, backward, step, gather, save.

Nothing else imports deepspeed. It is imported when the first engine is built, since it settles on CPU or GPU meanwhile.
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
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from ippo_cli.engine import distributed
from ippo_cli.engine.optimizers import make_client_optimizer
from ippo_cli.engine.reshard import Shards, restore_shards

M = TypeVar("M", bound=nn.Module)

TAG = "shards"  # the folder that DeepSpeed makes inside the caller's
HYPERPARAMETERS = ("lr", "weight_decay", "betas", "eps")

_last_world: Any = None  # the process group that DeepSpeed's own groups were cloned from


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What became of an optimizer step: `grad_norm` is global, before clipping, and inf for a step not applied."""

    applied: bool
    grad_norm: float


class Engine(Generic[M]):
    """A module, its optimizer and its gradients, split over the ranks as `zero` says (see `zero_config`).

    Each entry of `param_groups` holds `params`, `lr`, `weight_decay`, `betas` and `eps`. Parameters of the module that
    no group names are neither trained nor saved. Several engines live side by side; every rank builds and calls them
    in the same order, with the same number of forwards and backwards. `distributed.init` comes first.

    At stage 3 weights are cast, moved to the device and split one parameter at a time: a rank that is given weights
    which lie in a file, mapped into memory, never has all of them in memory of its own. Without groups a module at
    stage 3 is only read, and needs no optimizer.
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
        deepspeed = _deepspeed(device)
        config = copy.deepcopy(zero)  # initialize writes into it
        groups = [dict(group, params=list(group["params"])) for group in param_groups]
        groups = [group for group in groups if group["params"]]  # as DeepSpeed does, so that indices agree
        self.module = module
        self._stage: int = config["zero_optimization"]["stage"]
        self._offloads = config["zero_optimization"]["offload_optimizer"] is not None
        self._owned = {id(param) for group in groups for param in group["params"]}
        names = {id(param): name for name, param in module.named_parameters()}
        self._names = [names[id(param)] for group in groups for param in group["params"]]
        self._hyperparameters = [{key: group[key] for key in HYPERPARAMETERS} for group in groups]
        self._max_grad_norm: float = config["gradient_clipping"]
        self._factor = 1.0
        self._held: frozenset[int] = frozenset()  # numbers of the groups that steps leave as they are
        self._is_gathered = False
        self._can_load = True
        if self._stage == 0:
            config["gradient_clipping"] = 0.0  # the guarded optimizer clips, since it knows the norm
        if not groups and self._stage < 3:
            raise ValueError(f"an engine without parameters to train needs stage 3, not {self._stage}")
        self._optimizer = None
        if groups:
            self._optimizer = make_client_optimizer(
                optimizer, groups, max_grad_norm=self._max_grad_norm if self._stage == 0 else None, device=device
            )
        if self._stage == 3:
            _partition_module(module, config, device)
        with contextlib.redirect_stdout(io.StringIO()):  # its bf16 optimizer reports memory in bare prints
            self._ds, *_ = deepspeed.initialize(model=module, optimizer=self._optimizer, config=config)
        self._ds.module_state_dict = self._trained_state
        self._ds._copy_recovery_script = lambda folder: None
        # Alone there is nobody to add gradients up with: DeepSpeed would flatten them all and copy them back.
        # ZeRO's own optimizers gather what they step on in the same call, and must be given it.
        self._alone = distributed.world_size() == 1 and not hasattr(self._ds.optimizer, "reduce_gradients")
        if self._alone and self._stage < 2:
            self._ds.enable_backward_allreduce = False
        if groups:  # nothing of others is saved
            self._ds.checkpoint_engine.load = _read_file

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward, through the engine: what comes out may go into `backward`."""
        return self._ds(*args, **kwargs)

    def train(self, mode: bool = True) -> None:
        """The module's mode, as `nn.Module.train` sets it."""
        self.module.train(mode)

    def eval(self) -> None:
        self.train(False)

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of one micro-batch; as many calls as you like before one `step`, the same on every rank.

        `loss` is this rank's share of the objective: a sum over its own rows, divided by counts over all ranks and
        micro-batches. DeepSpeed averages gradients over ranks, so the share is multiplied by the world size here.
        A rank without rows takes part with `0 * loss`.
        """
        self._ds.backward(loss * distributed.world_size(), scale_wrt_gas=False)

    def step(self) -> StepResult:
        """One optimizer step on the gradients added up since the last one, which are gone afterwards.

        A global gradient norm that is not finite is never stepped on: on every rank alike, parameters and optimizer
        state stay what they were, bit for bit.
        """
        if self._alone and self._stage == 0:  # in bf16 there are fp32 gradients of all
            self._fill_missing_gradients()
        self._ds.step()
        if not self._ds.was_step_applied():
            if self._offloads and self._stage < 3:
                # DeepSpeed forgets to drop what it added up in fp32, and would skip every later step as well.
                self._ds.optimizer.averaged_gradients.clear()
            return StepResult(applied=False, grad_norm=math.inf)
        if self._held:
            self._reset_unused_moments()
        return StepResult(applied=True, grad_norm=float(self._ds.get_global_grad_norm()))

    def _fill_missing_gradients(self) -> None:
        """Zeros for parameters that no loss reached, as adding up over ranks gives them: weights decay all the same."""
        assert self._optimizer is not None
        for group in self._optimizer.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    param.grad = torch.zeros_like(param)

    def _reset_unused_moments(self) -> None:
        """Sets back the step count of moments that no gradient has entered yet.

        Adam counts every step for its bias correction: after n steps without gradients the first one with a gradient
        would be up to 3.2 times the learning rate. Moments of several groups are never in one tensor.
        """
        assert self._optimizer is not None
        for state in self._optimizer.state.values():
            if "step" in state and not state["exp_avg_sq"].any():
                state["step"].zero_()

    def set_learning_rate(self, factor: float, frozen_groups: Collection[int] = ()) -> None:
        """Sets every group's learning rate to its base times `factor`: schedules are the caller's.

        Steps leave the `held` groups (by their number) unchanged, weight decay included; the caller's loss gives them
        no gradient.
        """
        self._factor, self._held = factor, frozenset(frozen_groups)
        assert self._optimizer is not None
        for number, (group, base) in enumerate(zip(self._optimizer.param_groups, self._hyperparameters, strict=True)):
            group["lr"] = 0.0 if number in self._held else base["lr"] * factor

    @contextlib.contextmanager
    def inference(self, gather: Literal["all", "layer"] = "all") -> Iterator[M]:
        """The plain module in eval mode without gradients, to be called as often as each rank likes.

        At stage 3, `all` holds every weight whole on every rank and takes DeepSpeed's hooks off, since these would
        give the weights up again after the first forward. `layer` keeps the hooks: weights come and go layer by layer,
        which leaves room on the device for more rows, or for a model that is larger than the device, and every rank
        must do the same number of forwards. Entering and leaving is collective.
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
            yield
            return
        # Weights that the last forward left on the way or in place would be counted wrongly.
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
        """The handles of every hook that DeepSpeed put on the module."""
        root = [self._ds.module_forward_pre_hook, self._ds.module_forward_post_hook]
        if self._stage < 3:
            return root
        # Without an optimizer, what splits the weights stands in its place.
        offload = getattr(self._ds.optimizer, "parameter_offload", self._ds.optimizer)
        return [*root, offload.fwd_pre_hook, *offload.forward_hooks, *offload.backward_hooks]

    def full_state_dict(self) -> dict[str, Tensor] | None:
        """The module's whole state on rank 0, as new CPU tensors in the module's dtype; None on other ranks.

        Collective. Names tied to one parameter share one tensor, as in the module.
        """
        result: dict[str, Tensor] = {}
        copies: dict[int, Tensor] = {}
        for name, tensor in self.module.state_dict(keep_vars=True).items():
            if id(tensor) not in copies:
                whole = self._stage < 3 or self._is_gathered or not isinstance(tensor, nn.Parameter)
                with contextlib.nullcontext() if whole else _gather_parameters([tensor]):
                    copies[id(tensor)] = tensor.detach().to("cpu", copy=True) if distributed.is_main() else tensor
            result[name] = copies[id(tensor)]
        return result if distributed.is_main() else None

    def save(self, folder: Path | str) -> list[Path]:
        """Writes this engine's shards below `folder`, flushed to the disk; the files that this rank wrote. Collective.

        The parameters of the param groups, the module's buffers and the optimizer's state; frozen parameters are the
        caller's to build again. What goes wrong with a file is raised only where it did, after all ranks are through:
        `gather_objects` can tell the others. It need be no OSError: `torch.save` has kinds of its own.
        """
        folder = Path(folder)
        written: list[Path] = []
        failures: list[Exception] = []
        try:
            (folder / TAG).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            failures.append(error)
        if not distributed.any_rank(bool(failures)):  # a rank that left here would be waited for in what follows
            self._ds.checkpoint_engine.save = lambda state_dict, path: _write_file(state_dict, path, written, failures)
            self._can_load = False
            self._ds.save_checkpoint(str(folder), tag=TAG, save_latest=False, exclude_frozen_parameters=True)
        if failures:
            raise failures[0]
        return written

    def load(self, folder: Path | str) -> None:
        """Takes up what `save` wrote, with the same world size; only on an engine that has not saved yet. Collective.

        Learning rates and the other hyperparameters stay those given to this engine.
        """
        if not self._can_load:
            raise RuntimeError("an engine that has saved cannot load (ZeRO 3 would mix up its shards); build a new one")
        with contextlib.redirect_stdout(io.StringIO()):  # here too
            self._ds._get_all_ckpt_names = self._shard_files
            path, _ = self._ds.load_checkpoint(str(folder), tag=TAG, custom_load_fn=self._load_module_state)
        if path is None:
            raise FileNotFoundError(f"{folder}: no shards of an engine here")
        self._restore_hyperparameters()

    def load_resharded(self, folder: Path | str) -> None:
        """The same for what another number of ranks has saved, at whichever stage. Every rank reads all files."""
        if not self._can_load:
            raise RuntimeError("an engine that has saved cannot load; build a new one")
        assert self._optimizer is not None
        shards = Shards(Path(folder) / TAG, self._names, lambda path: _read_file(path, mapped=True))
        restore_shards(self.module, shards, self._ds.optimizer, self._optimizer, distributed.rank())
        self._restore_hyperparameters()

    def _shard_files(self, folder: str, tag: str) -> list[str]:
        """What DeepSpeed globs for, in folders with brackets as well."""
        return sorted(glob.glob(self._ds._get_ckpt_name(glob.escape(folder), tag, mp_placeholder="*")))

    def _restore_hyperparameters(self) -> None:
        assert self._optimizer is not None
        for group, hyperparameters in zip(self._optimizer.param_groups, self._hyperparameters, strict=True):
            group.update({key: value for key, value in hyperparameters.items() if key in group})
        self.set_learning_rate(self._factor, self._held)
        if self._stage > 0:
            self._ds.optimizer.clip_grad = self._max_grad_norm

    def _trained_state(self, **_: Any) -> dict[str, Tensor]:
        """The parameters that this engine trains, and the buffers: what DeepSpeed writes as the module's state."""
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
            raise RuntimeError(f"the checkpoint holds another module: {len(odd)} names differ, such as {odd[:3]}")
        dst.load_state_dict(src, strict=False)

    def destroy(self) -> None:
        """Takes DeepSpeed off the module and frees what it holds; the engine cannot be used afterwards."""
        for hook in self._hooks():
            hook.remove()
        self._ds.destroy()
        if self._stage == 3:
            from deepspeed.runtime.zero import parameter_offload

            stack = parameter_offload.FWD_MODULE_STACK
            stack[:] = [module for module in stack if module is not self.module]
        del self._ds, self._optimizer
        gc.collect()


def _deepspeed(device: torch.device) -> Any:
    """DeepSpeed for this kind of device, quiet, compiling nothing, on the current process group."""
    global _last_world
    if not torch.distributed.is_initialized():
        raise RuntimeError("an engine needs a process group; call distributed.init() first")
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    if device.type == "cuda":  # to DeepSpeed, LOCAL_RANK is the number of the GPU
        os.environ["LOCAL_RANK"] = str(torch.cuda.current_device() if device.index is None else device.index)
    else:
        os.environ.setdefault("LOCAL_RANK", "0")
    import deepspeed
    import deepspeed.ops
    from deepspeed.accelerator import get_accelerator
    from deepspeed.utils import groups, logger

    logger.setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    accelerator = get_accelerator()
    assert accelerator is not None
    if accelerator.device_name() != device.type:
        raise RuntimeError(f"device={device.type}, but DeepSpeed runs on {accelerator.device_name()} already")
    # Nothing is known to be compatible, so nothing is compiled: the shared-memory reduction wants g++ and ninja.
    deepspeed.ops.__compatible_ops__ = {}  # pyright: ignore[reportAttributeAccessIssue]
    if torch.distributed.group.WORLD is not _last_world:
        _last_world = torch.distributed.group.WORLD
        groups._WORLD_GROUP = torch.distributed.new_group(timeout=distributed.collective_timeout())
    return deepspeed


def _partition_module(module: nn.Module, config: dict[str, Any], device: torch.device) -> None:
    """Makes the module's weights those of stage 3, as rank 0 has them, one parameter after another.

    DeepSpeed would cast and move the module first, whole, and then write rank 0's weights into those of every other
    rank: where these lie in a mapped file, each page that is written to becomes memory of the rank's own.
    """
    from deepspeed.runtime.zero import Init

    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, buffer.to(device))
    dtype = torch.bfloat16 if config["bf16"]["enabled"] else torch.float32
    init = Init(module=nn.Module(), config_dict_or_path=copy.deepcopy(config))
    for param in module.parameters():
        values = param.data.flatten()
        own = dtype if values.is_floating_point() else values.dtype
        if values.dtype != own or values.device != device:
            param.data = torch.empty(param.shape, dtype=own, device=device)
        init._convert_to_deepspeed_param(param)
        param.partition()  # pyright: ignore[reportAttributeAccessIssue]
        distributed.scatter(values, param.ds_tensor, device)  # pyright: ignore[reportAttributeAccessIssue]


def _gather_parameters(params: list[nn.Parameter]) -> contextlib.AbstractContextManager[None]:
    """Whole weights to read, on every rank; parameters that are not partitioned are left alone."""
    from deepspeed.runtime.zero import GatheredParameters

    return GatheredParameters(params, modifier_rank=None)


@contextlib.contextmanager
def _suspend_hooks(handles: list[Any]) -> Iterator[None]:
    """Takes hooks off and lays them back in their old order; hooks of others are not touched."""
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
    """Writes one file down to the disk; keeps the failure, since the other ranks wait for this one at a barrier."""
    try:
        with open(path, "wb") as file:
            torch.save(_replace_enums(state), file)
            file.flush()
            os.fsync(file.fileno())
        written.append(Path(path))
    except Exception as error:  # on a full disk torch raises a RuntimeError in the place of the OSError
        failures.append(error)


def _replace_enums(state: Any) -> Any:
    """The same with values for members of enums, which Python before 3.11.4 pickles as calls: these are no data."""
    if isinstance(state, Enum):
        return state.value
    if type(state) is dict:
        return {key: _replace_enums(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(_replace_enums, state))
    return state


def _read_file(path: str, map_location: Any = None, mapped: bool = False) -> dict[str, Any]:
    """Reads one file as data: of all the classes a pickle may name, only the three that DeepSpeed writes."""
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    with torch.serialization.safe_globals([LossScaler, ZeroStageEnum, fragment_address]):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
