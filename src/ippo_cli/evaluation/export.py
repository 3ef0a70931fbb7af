"""Exports agents of a run as Hugging Face folders, and verifies that the loaded folders compute the same outputs.

Files are written to a temporary folder beside the target, which is renamed at the end: an interrupted export leaves
nothing under the name of the target.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from ippo_cli.agents.agent import FrozenAgent
from ippo_cli.agents.frozen import load_frozen_agent
from ippo_cli.config.adapters import ADAPTER_CONFIG, ADAPTER_SUBFOLDER
from ippo_cli.config.errors import ConfigError, StorageError, convert_storage_errors
from ippo_cli.config.schema import Config, Dtype, SamplingConfig
from ippo_cli.config.served_agents import local_agents, served_agents
from ippo_cli.config.teams import policy_by_agent, value_holders
from ippo_cli.engine import distributed
from ippo_cli.evaluation.evaluate_run import EvaluatedWeights, adapters_by_agent, find_weights
from ippo_cli.evaluation.model_card import model_card
from ippo_cli.models.actor import DTYPES
from ippo_cli.models.agreement import HALF_PRECISION, compute_in_float32, outputs_match, probe_ids, relative_error
from ippo_cli.models.critic import (
    ValueHead,
    ValueHeadConfig,
    ValueModel,
    ValueModelConfig,
    attach_value_head,
    load_value_head,
)
from ippo_cli.models.load import backbone_of
from ippo_cli.rollout.decode import stop_ids
from ippo_cli.runs.checkpoint_files import file_sha256, fsync_folder
from ippo_cli.runs.folder import display_path, print_warning, write_atomically
from ippo_cli.training.process import prepare_process

EXPORT_FILE = "export.json"
PROBE_TOKENS = 64  # number of tokens on which logits are compared
MAX_LOST_FRACTION = 0.01  # largest fraction of an adapter's effect on log-probabilities that an export may lose
FP32_NOISE = 1e-5  # relative difference of logits between float32 computations of the same model
MIN_KEPT_FRACTION = 0.9  # fraction of an adapter's effect below which a merged model causes a warning
PROBE_TEXT = "Two and two: 2 + 2 = 4. Äpfel, 苹果\n"  # text on which tokenizers are compared


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """The arguments of an export."""

    run_folder: Path
    checkpoint: str
    target: Path
    agents: Sequence[str]  # empty: all agents
    is_merged: bool  # merge adapters into their base; else export only the adapter
    dtype: Dtype | None = None  # type of merged weights: fp32 (None), or bf16, which loses small changes
    needs_critic: bool  # also export critics
    command: str  # command line of this export, for the model cards


def export_agents(config: Config, request: ExportRequest, say: Callable[[str], None]) -> Path:
    """Write and verify the folders of the agents, then rename them to the target. Returns it. Raises `IppoError`."""
    weights = find_weights(request.run_folder, request.checkpoint, policy_by_agent(config), adapters_by_agent(config))
    served = served_agents(config)
    agents = list(request.agents) or list(local_agents(config))
    if unknown := [name for name in agents if name not in config.task.agents]:
        raise ConfigError(f"agent={unknown[0]}", "is not an agent of this run", f"use {' '.join(config.task.agents)}")
    if at_servers := [name for name in agents if name in served]:
        raise ConfigError(
            f"agent={at_servers[0]}",
            f"is at the server {served[at_servers[0]].url}, and its weights are not here",
            f"use {' '.join(local_agents(config))}",
        )
    if not request.is_merged or request.dtype is not None:
        _check_adapters(config, request, agents)
    if request.target.exists() and (not request.target.is_dir() or any(request.target.iterdir())):
        raise ConfigError(f"to={request.target}", "already exists", "use a new or empty folder")
    critic_folders = _find_critics(config, weights, request, agents) if request.needs_critic else {}
    device = prepare_process(config)
    partial = request.target.with_name(f".{request.target.name}.partial")
    try:
        with convert_storage_errors(str(request.target)):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            checked: dict[str, Any] = {}
            for name in agents:
                policy = load_frozen_agent(name, weights.models[name], config.task.agents[name].actor, device, {})
                _write_model(policy, weights.models[name], partial / name, config, name, request)
                checked[name] = _verify_model(policy, partial / name, name, request)
                if name in critic_folders:
                    critic = partial / name / "critic"
                    checked[name] |= _write_critic(policy, critic_folders[name], critic, request, name)
                card = model_card(config, name, request.run_folder, weights, request.command, merged=request.is_merged)
                write_atomically(partial / name / "README.md", card)
                if (share := checked[name].get("kept_share")) is not None:
                    say(f"{name}: {share:.4f} of the adapter's effect is kept ({checked[name]['dtype']} weights)")
                    if share < MIN_KEPT_FRACTION:
                        print_warning(
                            f"{name}: merged in bf16, {1 - share:.0%} of the adapter's effect is lost to rounding; "
                            "remove dtype=bf16, or use merged=false and serve the adapter with its base"
                        )
                errors = [
                    f"largest relative difference of {outputs} {checked[name][key]:.1e}"
                    for key, outputs in (("deviation", "logits"), ("critic_deviation", "critic values"))
                    if key in checked[name]
                ]
                say(f"{name}: verified to load identically: " + ", ".join(errors))
            finalize_export(partial, request, weights, checked)
    finally:
        distributed.shutdown()
    say(f"written to {display_path(request.target)}: " + " ".join(f"{name}/" for name in agents))
    for name in served if not request.agents else ():
        say(f"{name} is not exported: its weights are at its server only")
    return request.target


def _check_adapters(config: Config, request: ExportRequest, agents: Sequence[str]) -> None:
    for name in agents:
        if config.task.agents[name].actor.trains_adapter:
            continue
        if not request.is_merged:
            raise ConfigError("merged=false", f"exports adapters, and agent {name} has no adapter", "remove it")
        assert request.dtype is not None
        raise ConfigError(
            f"dtype={request.dtype.value}",
            f"is the type of merged adapters, and agent {name} has no adapter: its weights are copied",
            "remove it",
        )
    if not request.is_merged and request.dtype is not None:
        raise ConfigError(
            f"dtype={request.dtype.value}",
            "is the type of merged weights, and merged=false does not merge",
            "remove it",
        )


def _find_critics(
    config: Config, subject: EvaluatedWeights, request: ExportRequest, agents: Sequence[str]
) -> dict[str, Path]:
    """The folder of each agent's critic in the checkpoint; `critic=value_head` saves only the head."""
    if "checkpoint" not in subject.metadata or not subject.metadata["iteration"]:
        raise ConfigError("critic=true", "exports critics, and initial weights have none", "remove it")
    root = request.run_folder / "checkpoints" / subject.name
    holders = value_holders(config)
    found = {name: root / holders[name] / "critic" for name in agents}
    if lacking := [name for name, folder in found.items() if not folder.is_dir()]:
        raise ConfigError("critic=true", f"exports critics, and agent {lacking[0]} has none", "remove it")
    return found


def _write_model(
    policy: FrozenAgent, record: Mapping[str, Any], target: Path, config: Config, name: str, request: ExportRequest
) -> None:
    """Write an agent in the format of transformers or peft. Complete model files of a checkpoint are copied."""
    source, merged = Path(record["model"]), request.is_merged
    whole, actor = "adapter" not in record, config.task.agents[name].actor
    trained = "tokenizer" in record  # a checkpoint already contains the effect of these keys
    if (
        whole
        and merged
        and source.is_dir()
        and (trained or not (actor.tokenizer or actor.chat_template or actor.model_args))
    ):
        target.mkdir()
        for file in sorted(record["sha256"]):
            if "/" not in file:
                shutil.copyfile(source / file, target / file)
    elif whole and not merged:  # a checkpoint with merged models also has the adapter
        shutil.copytree(source / ADAPTER_SUBFOLDER, target)
        policy.tokenizer.save_pretrained(target)
    else:
        work = target.with_name(f"{target.name}.work")
        options = {} if whole or request.dtype is None else {"merged_dtype": DTYPES[request.dtype]}
        folder, *_ = policy.policy.save(work, policy.policy.state_dict(), policy.tokenizer, merged=merged, **options)
        folder.rename(target)
        shutil.rmtree(work)
    if merged:
        ends = stop_ids(policy.policy.lm, policy.tokenizer)
        write_generation_config(target, config.task.agents[name].rollout, policy.tokenizer, ends)
        return
    settings = json.loads((target / ADAPTER_CONFIG).read_text())
    # AutoPeftModelForCausalLM needs the task type; adapters in checkpoints have none, as they may belong to critics.
    (target / ADAPTER_CONFIG).write_text(json.dumps(settings | {"task_type": "CAUSAL_LM"}, indent=2) + "\n")


def write_generation_config(
    target: Path, sampling: SamplingConfig, tokenizer: PreTrainedTokenizerBase, ends: Sequence[int]
) -> None:
    """Write the sampling settings of training as the defaults of `generate`.

    With stop strings, `generate` raises an error without `tokenizer=`, which is better than not stopping.
    """
    GenerationConfig(
        do_sample=True,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p or None,
        repetition_penalty=sampling.repetition_penalty,
        max_new_tokens=sampling.max_new_tokens,
        min_new_tokens=sampling.min_new_tokens or None,
        stop_strings=list(sampling.stop_strings) or None,
        eos_token_id=list(ends) if len(ends) > 1 else next(iter(ends), None),
        pad_token_id=tokenizer.pad_token_id,
    ).save_pretrained(target)


@torch.no_grad()
def _verify_model(policy: FrozenAgent, folder: Path, name: str, request: ExportRequest) -> dict[str, Any]:
    """Load the exported folder and compare its logits with the run's. Raises `StorageError` if they differ.

    Logits are computed in float32, so that rounding hides no difference. The error of an adapter is measured relative
    to the adapter's effect: relative to the logits, the base alone would pass after a short training.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer(PROBE_TEXT).input_ids != policy.tokenizer(PROBE_TEXT).input_ids:
        raise StorageError(f"{folder}: its tokenizer encodes a text differently from the run's; nothing is exported")
    lm, device = policy.policy.lm, policy.policy.lm.device
    model: Any
    if request.is_merged:
        stored = (
            "auto" if hasattr(policy.policy, "adapter") else lm.dtype
        )  # the run may load copied files in a lower precision
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=stored)
    else:
        from ippo_cli.models.lora import load_with_peft

        model = load_with_peft(folder, lm.dtype)
    model = model.to(device).eval()
    ids = probe_ids(PROBE_TOKENS, policy.model_config.get_text_config().vocab_size, device)

    def logits(model: Any) -> Tensor:
        with compute_in_float32(model):
            return model(input_ids=ids, use_cache=False).logits[0].float()

    with policy.policy.use_adapter():
        expected = logits(lm)
    actual = logits(model)
    found = {"deviation": relative_error(actual, expected), "probed_tokens": PROBE_TOKENS}
    found["dtype"] = str(model.dtype).removeprefix("torch.")
    differs = f"{folder}: the exported agent {name} computes different outputs"
    adapter = getattr(policy.policy, "adapter", None)
    if adapter is None:
        if not found["deviation"] <= FP32_NOISE:
            raise StorageError(
                f"{differs} (relative difference of logits: {found['deviation']:.1e}); nothing is exported"
            )
        return found
    with adapter.base.use_adapter(None):
        base = logits(lm)
    expected, actual, base = (part.log_softmax(-1) for part in (expected, actual, base))
    effect, error = float((expected - base).norm()), float((actual - expected).norm())
    noise = FP32_NOISE * float(expected.norm())
    rounds = request.is_merged and request.dtype is Dtype.bf16
    is_equal = error <= MAX_LOST_FRACTION * effect + noise if not rounds else found["deviation"] <= HALF_PRECISION
    if request.is_merged:
        is_equal = is_equal and _has_merged_weights(model, policy.policy)
    if not is_equal:
        raise StorageError(
            f"{differs} (distance of log-probabilities from the run's: {error:.1e}, and of the run's from the base's: "
            f"{effect:.1e}); nothing is exported"
        )
    if effect > noise:
        found["kept_share"] = float(((actual - base) * (expected - base)).sum()) / effect**2
    return found


def _has_merged_weights(model: Any, policy: Any) -> bool:
    """Whether the weights of a loaded model equal base plus adapter, rounded to the type of the model."""
    weights = policy.adapter.state_dict()
    return all(
        torch.equal(model.get_submodule(path).weight, (own + change).to(model.dtype))
        for path, own, change in policy.base.weight_changes(policy.adapter, weights)
    )


def _write_critic(
    policy: FrozenAgent, source: Path, target: Path, request: ExportRequest, name: str
) -> dict[str, float]:
    """Write the folder of a critic: a complete value model; a value head is combined with the exported actor.

    With `merged=false` the head or adapter of the checkpoint is copied. Returns the relative difference of the values
    of the loaded critic. Raises `StorageError` if it is too large.
    """
    head = load_value_head(source) if _model_type(source) == ValueHeadConfig.model_type else None
    if head is None or not request.is_merged:
        shutil.copytree(source, target)
        for file in source.rglob("*"):
            if file.is_file() and file_sha256(file) != file_sha256(target / file.relative_to(source)):
                raise StorageError(
                    f"{target}: the copy of {file.name} differs from the checkpoint; nothing is exported"
                )
    else:
        model = attach_value_head(AutoModel.from_pretrained(target.parent, dtype="auto"), head)
        model.save_pretrained(target)
        policy.tokenizer.save_pretrained(target)
    if _model_type(target) != ValueModelConfig.model_type:
        return {}  # an adapter or a head computes no values without its base
    return {"critic_deviation": _verify_critic(policy, source, target, name, head)}


def _model_type(folder: Path) -> str | None:
    config = folder / "config.json"
    return json.loads(config.read_text())["model_type"] if config.is_file() else None


@torch.no_grad()
def _verify_critic(policy: FrozenAgent, source: Path, folder: Path, name: str, head: ValueHead | None) -> float:
    """Load the critic as `reward.model` and `critic.warm_start` do; return the relative difference of its values."""
    device = policy.policy.lm.device
    loaded: Any = ValueModel.from_pretrained(folder, use_safetensors=True)
    loaded = loaded.to(device).eval()
    ids = probe_ids(PROBE_TOKENS, loaded.backbone.config.get_text_config().vocab_size, device)

    def values(backbone: Any, head: Any, given: Tensor) -> Tensor:
        with compute_in_float32(backbone), compute_in_float32(head):
            return head(backbone(input_ids=given, use_cache=False).last_hidden_state.float())

    if head is None:
        own: Any = ValueModel.from_pretrained(source, use_safetensors=True)
        own = own.to(device).eval()
        expected, wrong = (values(own.backbone, own.value_head, inputs) for inputs in (ids, ids.roll(1, dims=1)))
    else:
        torch.nn.Module.to(head, device)
        backbone = backbone_of(policy.policy.lm)
        with policy.policy.use_adapter():
            expected, wrong = (values(backbone, head, inputs) for inputs in (ids, ids.roll(1, dims=1)))
    actual = values(loaded.backbone, loaded.value_head, ids)
    if not outputs_match([actual], [expected], [wrong]):
        raise StorageError(
            f"{folder}: the exported critic of agent {name} computes different outputs (relative difference of "
            f"values: {relative_error(actual, expected):.1e}); nothing is exported"
        )
    return relative_error(actual, expected)


def finalize_export(
    partial: Path, request: ExportRequest, subject: EvaluatedWeights, checked: Mapping[str, Any]
) -> None:
    """Write `export.json` with checksums of all files, sync them to disk, and rename the folder to the target."""
    files = sorted(file for file in partial.rglob("*") if file.is_file())
    listed = {
        str(file.relative_to(partial)): {"bytes": file.stat().st_size, "sha256": file_sha256(file)} for file in files
    }
    record = {**subject.metadata, "command": request.command, "agents": dict(checked), "files": listed}
    write_atomically(partial / EXPORT_FILE, json.dumps(record, indent=1) + "\n")
    for file in files:
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    for folder in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
        fsync_folder(folder)
    if request.target.is_dir():
        request.target.rmdir()
    partial.rename(request.target)
    fsync_folder(request.target.parent)
