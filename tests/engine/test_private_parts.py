"""Private parts of DeepSpeed that `engine/zero.py` uses: a test names each part that an upgrade removes.

Other tests of this folder check their behaviour.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from ippo_cli.engine.zero_config import zero_config

ENGINE = ("deepspeed.runtime.engine", "DeepSpeedEngine")
STAGE_1_2 = ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer")
STAGE_3 = ("deepspeed.runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3")
SPLITTING = ("deepspeed.runtime.zero.partition_parameters", "Init")
OFFLOAD = ("deepspeed.runtime.zero.parameter_offload", "DeepSpeedZeRoOffload")
USED = [
    (*ENGINE, "self.module_forward_pre_hook = "),  # removed in `inference` and `destroy`
    (*ENGINE, "self.module_forward_post_hook = "),
    (*ENGINE, "self.module_state_dict("),  # replaced: the content of the module's state
    (*ENGINE, "self._copy_recovery_script("),  # replaced: no script beside the shards
    (*ENGINE, "self.checkpoint_engine.save("),  # replaced: flushed to the disk
    (*ENGINE, "self.checkpoint_engine.load("),  # replaced: as data, not as code
    (*ENGINE, "custom_load_fn(src="),
    (*ENGINE, "def backward(self, loss, retain_graph=False, scale_wrt_gas=True)"),
    (*ENGINE, "def was_step_applied("),
    (*ENGINE, "self.optimizer._global_grad_norm"),  # provided by the guarded optimizers of stage 0
    (*ENGINE, "self.optimizer.overflow"),
    (*ENGINE, "self.managed_gradient_accumulation()"),
    (*STAGE_1_2, "self.averaged_gradients"),  # cleared after a skipped step
    (*STAGE_1_2, "self.clip_grad = "),  # set again after loading
    (*STAGE_3, "self.clip_grad = "),
    (*STAGE_3, "self.parameter_offload = "),
    (*STAGE_3, "def empty_partition_cache("),
    (*SPLITTING, "def _convert_to_deepspeed_param(self, param)"),  # called for one parameter at a time
    (*SPLITTING, "param.partition = "),
    (*SPLITTING, "param.ds_tensor = "),  # written to
    (*OFFLOAD, "def empty_partition_cache("),  # without an optimizer
    (*OFFLOAD, "self.fwd_pre_hook = "),
    (*OFFLOAD, "self.forward_hooks.append("),
    (*OFFLOAD, "self.backward_hooks.append("),
    ("deepspeed.runtime.zero.parameter_offload", None, "\nFWD_MODULE_STACK = list()"),
    ("deepspeed.utils.groups", None, "\n_WORLD_GROUP = "),  # set: a group with our timeout
    ("deepspeed.utils.groups", None, "\n_TENSOR_MODEL_PARALLEL_GROUP = "),  # set: groups with our timeout
    ("deepspeed.utils.groups", None, "\n_MODEL_PARALLEL_GROUP = "),
    ("deepspeed.utils.groups", None, "\n_DATA_PARALLEL_GROUP = "),
    ("deepspeed.utils.groups", None, "\nmpu = "),
    (*ENGINE, "self.first_dataloader_check = "),  # removed: it compares inputs
    ("deepspeed.module_inject.layers", "LinearLayer", "def gather_params(self, params_list)"),  # called for scoring
    ("deepspeed.module_inject.layers", "LinearAllreduce", "self._freeze_partition_sizes("),  # marks a split map
    ("deepspeed.runtime.zero.partitioned_param_coordinator", None, "assert_ints_same_as_other_ranks(["),  # replaced
    ("deepspeed.comm", None, "from .comm import *"),  # whose `barrier` is replaced
    ("deepspeed.ops", None, "__compatible_ops__"),  # set: nothing is compiled
    ("deepspeed.comm.torch", None, "deepspeed.ops.__compatible_ops__.get("),
]


@pytest.mark.parametrize(("module", "owner", "text"), USED, ids=[f"{part[1] or part[0]} {part[2]!r}" for part in USED])
def test_deepspeed_has(module: str, owner: str | None, text: str) -> None:
    where: Any = importlib.import_module(module)
    where = where if owner is None else getattr(where, owner)
    assert text in inspect.getsource(where), f"{module}: {owner or 'the module'} has no {text.strip()!r} any more"


@pytest.mark.parametrize(
    ("method", "keyword"),
    [
        ("save_checkpoint", "save_latest"),
        ("save_checkpoint", "exclude_frozen_parameters"),
        ("load_checkpoint", "custom_load_fn"),
    ],
)
def test_deepspeed_accepts(method: str, keyword: str) -> None:
    engine = importlib.import_module(ENGINE[0]).DeepSpeedEngine
    assert keyword in inspect.signature(getattr(engine, method)).parameters, f"{method} takes no {keyword} any more"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
        ("deepspeed.runtime.zero.config", "ZeroStageEnum"),
        ("deepspeed.utils.tensor_fragment", "fragment_address"),
        ("deepspeed.runtime.zero", "GatheredParameters"),
    ],
)
def test_deepspeed_defines(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name), f"{module} has no {name} any more"


def test_deepspeed_reads_all_config_keys() -> None:
    """DeepSpeed silently ignores unknown top-level keys."""
    settings = zero_config(
        stage=3,
        dtype="bf16",
        offload_optimizer=True,
        offload_params=True,
        reduce_bucket_size=1000,
        prefetch_bucket_size=0,
        persistence_threshold=0,
        max_live_parameters=1_000_000_000,
        max_grad_norm=1.0,
    )
    sources = "".join(
        inspect.getsource(importlib.import_module(f"deepspeed.{name}"))
        for name in (
            "runtime.constants",
            "runtime.config",
            "profiling.constants",
            "profiling.config",
            "comm.constants",
            "comm.config",
            "runtime.precision_config",
            "runtime.zero.config",
            "runtime.zero.offload_config",
        )
    )
    names = {*settings, *settings["bf16"], *settings["zero_optimization"], *settings["checkpoint"]}
    assert not [name for name in sorted(names) if name not in sources]
