"""Loads pretrained weights: complete, without dropout, and with equal outputs in training and evaluation mode."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from ippo_cli.config.adapters import ADAPTER_CONFIG
from ippo_cli.config.errors import PreflightError

RANDOM_SETTING = re.compile(r"drop|jitter")
"""Parts of names of settings that make training random: resid_pdrop, residual_dropout, layerdrop, router_jitter_noise.
"""
TRAINING_FORWARDS = 4
"""Number of training-mode forwards that must agree if random numbers are used."""


class UnusableModel(ValueError):
    """The reason why a model cannot be used, as a complete message."""


def load_pretrained(
    kind: Any,
    source: str,
    *,
    revision: str | None = None,
    dtype: torch.dtype,
    as_stored: bool = False,
    trains: bool = True,
    **options: Any,
) -> Any:
    """A model of `kind` (a class of transformers or of this project) from safetensors, in evaluation mode.

    Weights of the files' own dtype are memory-mapped and shared by all processes of a machine. With `as_stored` they
    keep the dtype of `config.json`, for an engine that casts them one by one (ZeRO stage 3), except float16, in which
    activations may overflow. Models with `trains=False` may have any attention pattern.

    Raises `UnusableModel` if weights are missing, or if training mode differs from evaluation mode.
    """
    # Auto classes have no configuration of their own.
    config = (getattr(kind, "config_class", None) or AutoConfig).from_pretrained(
        source, revision=revision, trust_remote_code=False
    )
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None:
        method = quantization.get("quant_method", "in an unknown format")
        raise UnusableModel(f"its weights are quantized ({method}) and cannot be trained; use the unquantized model")
    if config.is_encoder_decoder:
        raise UnusableModel("it is an encoder-decoder model; use a decoder-only one")
    model, loading = kind.from_pretrained(
        source,
        revision=revision,
        dtype="auto" if as_stored and config.dtype in (torch.float32, torch.bfloat16) else dtype,
        use_safetensors=True,
        output_loading_info=True,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,
        **options,
    )
    missing, mismatched = sorted(loading["missing_keys"]), sorted(loading["mismatched_keys"])
    if missing:
        raise UnusableModel(f"its files lack {len(missing)} of its weights, such as {missing[0]}")
    if mismatched:
        name, stored, required = mismatched[0]
        raise UnusableModel(f"its files hold {name} as {list(stored)}, and its config.json requires {list(required)}")
    model.eval()
    _keep_soft_caps(model)
    if trains:
        make_deterministic(model)
    if as_stored:
        _set_config_dtype(model, dtype)
    return model


def _keep_soft_caps(model: nn.Module) -> None:
    """Use `eager` attention in models that cap attention scores: `sdpa`, their default in some versions of
    transformers, ignores the cap.
    """
    for part in model.modules():
        if not isinstance(part, PreTrainedModel) or part.config._attn_implementation != "sdpa":
            continue
        if getattr(part.config, "attn_logit_softcapping", None) is not None:
            part.set_attn_implementation("eager")


def _set_config_dtype(model: nn.Module, dtype: torch.dtype) -> None:
    """Set the dtype of all configurations of a model."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            part.config.dtype = dtype
            for name in part.config.sub_configs:
                if (sub := getattr(part.config, name, None)) is not None:
                    sub.dtype = dtype


def submodule_weights(prefix: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a submodule under its own names."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def save_model(model: PreTrainedModel, folder: Path, weights: dict[str, Tensor]) -> None:
    """Write a model with these weights in Hugging Face format, on any rank: the library would write on rank 0 only."""
    vars(model)["should_save_on_this_rank"] = lambda is_main_process: is_main_process
    try:
        model.save_pretrained(folder, state_dict=weights)
    finally:
        del vars(model)["should_save_on_this_rank"]
    if not any(folder.glob("*.safetensors")):
        raise OSError(f"{folder}: no weights were written")


def checkpoint_tensors(model: PreTrainedModel, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
    """The tensors of a checkpoint that contain a parameter of a model: transformers renames modules and stacks experts
    when it loads a checkpoint.
    """
    return revert_weight_conversion(model, {name: tensor}).items()


def backbone_of(model: PreTrainedModel) -> PreTrainedModel:
    """A model without its head."""
    backbone = model.base_model
    assert isinstance(backbone, PreTrainedModel)
    return backbone


@torch.no_grad()
def make_deterministic(model: PreTrainedModel) -> None:
    """Switch off all randomness in training, and verify it.

    Raises `UnusableModel` unless the model is causal and its outputs in training mode equal those in evaluation mode.
    """
    backbone = backbone_of(model)
    name = type(backbone).__name__
    ids = torch.arange(5, 13, device=backbone.device)[None] % backbone.config.get_text_config().vocab_size
    expected = _hidden_states(backbone, ids)
    if not expected.isfinite().all():
        raise UnusableModel("its outputs are not finite: some of its weights are NaN or infinite")
    other = _hidden_states(backbone, torch.cat([ids[:, :-1], ids[:, :1]], dim=1))
    if not _is_close(other[:, :-1], expected[:, :-1]):
        raise UnusableModel(f"{name} attends to later tokens; use a causal language model")
    disable_dropout(model)
    if not _is_close(_hidden_states(backbone, ids), expected) or not _train_eval_match(backbone, ids, expected):
        raise UnusableModel(f"{name} has other outputs in training mode, even without dropout; use another model")


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout probability and jitter of a model to 0, in its modules and its configurations.

    PPO compares probabilities before and after an update: with dropout, the first ratio would not be 1.
    """
    seen: set[int] = set()
    for part in model.modules():
        _zero_probabilities(part, seen)
        if isinstance(part, PreTrainedModel):
            _zero_probabilities(part.config, seen)


def _zero_probabilities(holder: nn.Module | PretrainedConfig, seen: set[int]) -> None:
    if id(holder) in seen:
        return
    seen.add(id(holder))
    drops = "drop" in type(holder).__name__.lower()  # nn.Dropout and similar modules name their probability `p`
    for name, value in list(vars(holder).items()):
        if isinstance(value, PretrainedConfig):
            _zero_probabilities(value, seen)
        elif type(value) in (float, int) and value and (RANDOM_SETTING.search(name) or (drops and name == "p")):
            setattr(holder, name, type(value)(0))


def _train_eval_match(backbone: PreTrainedModel, ids: Tensor, expected: Tensor) -> bool:
    backbone.train()
    try:
        with torch.random.fork_rng(devices=[]):
            first = _hidden_states(backbone, ids)
            for number in range(TRAINING_FORWARDS):
                torch.manual_seed(number)
                before = torch.get_rng_state()
                if not torch.equal(_hidden_states(backbone, ids), first):
                    return False
                if torch.equal(torch.get_rng_state(), before):
                    break  # no random numbers are used: another forward would be identical
    finally:
        backbone.eval()
    return _is_close(first, expected)


def _hidden_states(backbone: PreTrainedModel, ids: Tensor) -> Tensor:
    return backbone(input_ids=ids, use_cache=False).last_hidden_state


def _is_close(actual: Tensor, expected: Tensor) -> bool:
    """Whether two outputs differ only by rounding."""
    tolerance = 1e-4 if expected.dtype == torch.float32 else 0.01
    return bool((actual - expected).norm() <= tolerance * expected.norm())


def load_error(setting: str, kind: str, error: Exception, reason: str | None = None) -> PreflightError:
    """An error for a model or tokenizer that cannot be loaded: the setting, and `reason` or the library's message."""
    message = (str(error).strip().splitlines() or [repr(error)])[0]
    if reason is not None and not isinstance(error, UnusableModel):
        message = reason
    return PreflightError(f"{setting}: no {kind} could be loaded ({message})")


def checkpoint_activations(model: PreTrainedModel, **options: Any) -> None:
    """Recompute activations in the backward pass; before transformers 5.23 the method has its older name."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False, **options})


def missing_tokenizer_reason(model: str) -> str | None:
    """The reason why a folder has no tokenizer, if its files show it; else None."""
    folder = Path(model)
    if folder.is_file():
        return missing_files_reason(folder)
    if folder.is_dir() and not any(folder.glob("tokenizer*")):
        return "its folder has no tokenizer.json; save the model's tokenizer there"
    return None


def missing_files_reason(folder: Path) -> str | None:
    """The reason why a folder contains no model, if its files show it; else None."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        return "it is a file; use the folder that contains config.json and the weights"
    files = {path.name for path in folder.iterdir()}
    if ADAPTER_CONFIG in files and "config.json" not in files:
        return (
            "it contains an adapter without its model; use actor=lora actor.adapter= with the model it was made for, "
            "or merge the two and save the whole model, as checkpoint.weights=full does"
        )
    if "config.json" not in files:
        return "its folder has no config.json; use the folder of a saved Hugging Face model"
    if not any(name.endswith(".safetensors") for name in files):
        return "its folder has no .safetensors file; load it once and call save_pretrained, which writes them"
    if any(_is_pointer(folder / name) for name in files if name.endswith(".safetensors")):
        return "its .safetensors files are pointers of Git LFS, not weights; run `git lfs pull` in its folder"
    return next((found for file in sorted(folder.glob("*.safetensors")) if (found := _damage_reason(file))), None)


def _damage_reason(file: Path) -> str | None:
    try:
        with safe_open(file, "pt"):
            return None
    except Exception as error:  # the library raises its own class, and an OSError for a broken link
        return f"{file.name} is damaged: {error}; copy or download it again"


def _is_pointer(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(8) == b"version "
    except OSError:  # a broken link
        return False
