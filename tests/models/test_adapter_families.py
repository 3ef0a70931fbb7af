"""Adapters on many model families: supported maps, and agreement with PEFT and merged weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from architectures import FAMILIES, tiny_config, tiny_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AdapterInit, AdapterMismatch, LoraConfig
from ippo_cli.models.linear_maps import linear_maps, maps_without_adapter, short_names
from ippo_cli.models.lora import FrozenBase
from ippo_cli.models.shape import actor_shape, add_adapter, empty_model

LORA = LoraConfig(
    rank=4,
    alpha=8.0,
    use_rslora=False,
    use_dora=False,
    target_modules="all-linear",
    rank_pattern={},
    alpha_pattern={},
    adapter_mismatch=AdapterMismatch.error,
    init=AdapterInit.default,
)


@pytest.mark.parametrize("family", FAMILIES)
def test_family_trains_and_loads_in_peft(family: str, tmp_path: Path) -> None:
    lm = tiny_model(family)
    lm.save_pretrained(tmp_path / "base")
    base = FrozenBase(lm, str(tmp_path / "base"))
    adapter = base.add_adapter(LORA, "actor", 0)
    assert set(short_names(list(adapter.scales))) == set(FAMILIES[family][2].split())
    ids = torch.randint(2, 64, (2, 7), generator=torch.Generator().manual_seed(0))

    def logits(model: Any) -> Tensor:
        return model(input_ids=ids, use_cache=False).logits

    optimizer = torch.optim.SGD(adapter.parameters(), lr=1.0)
    for _ in range(2):  # B starts at 0, so that A has a gradient only in the second step
        optimizer.zero_grad()
        with adapter.activate():
            loss = torch.nn.functional.cross_entropy(logits(lm)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        assert all(weight.grad is not None for weight in adapter.parameters())
        optimizer.step()
    with torch.no_grad(), adapter.activate():
        trained = logits(lm)
    with torch.no_grad(), base.use_adapter(None):
        assert (trained - logits(lm)).norm() > 1e-3 * trained.norm()
    adapter.save(tmp_path / "adapter", adapter.state_dict())
    fresh = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    loaded = peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
    merged = tiny_model(family)
    merged.load_state_dict(base.merge_adapter(adapter, adapter.state_dict()))
    with torch.no_grad():
        for other in (loaded, merged):
            torch.testing.assert_close(logits(other), trained, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen2_moe", "llama", "mamba"])
def test_planned_sizes_match_trained(family: str) -> None:
    adapter = FrozenBase(tiny_model(family), family).add_adapter(LORA, "actor", 0)
    empty = empty_model(tiny_config(family))
    planned = add_adapter(actor_shape(empty), empty, LORA, "actor", family)
    assert planned.trained_parameters == sum(weight.numel() for weight in adapter.parameters())


@pytest.mark.parametrize(
    ("family", "target", "words"),
    [
        ("deepseek_v3", "gate_proj", "cannot have an adapter in deepseek_v3: PEFT uses this name for the experts"),
        ("qwen2_moe", "shared_expert_gate", "its output is a single number"),
        ("mamba", "dt_proj", "its weight is read without calling it"),
        ("mamba", "out_proj", "PEFT rejects it"),
        ("phimoe", "router", "selects experts"),
    ],
)
def test_unsupported_maps_rejected(family: str, target: str, words: str) -> None:
    lm = tiny_model(family)
    assert target in short_names(list(maps_without_adapter(lm)))
    chosen = LoraConfig(**{**vars(LORA), "target_modules": [target]})
    with pytest.raises(ConfigError, match=words) as found:
        FrozenBase(lm, family).add_adapter(chosen, "actor", 0)
    assert " ".join(short_names(list(linear_maps(lm)))) in str(found.value)
