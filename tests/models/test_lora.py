"""Adapters on a frozen base: outputs, gradients, and loading of files."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from folders import model_folder
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from ippo_cli.config.adapters import ADAPTER_FILES as FILES
from ippo_cli.config.adapters import read_adapter
from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.config.schema import AdapterInit, AdapterMismatch, Dtype, LoraConfig
from ippo_cli.models.actor import Policy, load_causal_lm
from ippo_cli.models.adapters import AdapterCritic, AdapterPolicy
from ippo_cli.models.agreement import compute_in_float32
from ippo_cli.models.critic import ValueHead, ValueHeadConfig, ValueModel
from ippo_cli.models.layout import Sequences, build_sequences
from ippo_cli.models.load import backbone_of
from ippo_cli.models.lora import Adapter, FrozenBase, load_adapter
from ippo_cli.models.packing import enable_packing
from ippo_cli.models.shape import actor_shape, add_adapter, empty_model
from ippo_cli.types import Rollout

LORA = LoraConfig(
    rank=3,
    alpha=5.0,
    use_rslora=False,
    use_dora=False,
    target_modules="all-linear",
    rank_pattern={},
    alpha_pattern={},
    adapter_mismatch=AdapterMismatch.error,
    init=AdapterInit.default,
)


class _Nothing:
    """A tokenizer without files."""

    def save_pretrained(self, folder: Path) -> None: ...


NOTHING: Any = _Nothing()
OPTIONS: dict[str, Any] = {"temperature": 0.7, "chunk_tokens": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def base(folder: Path) -> FrozenBase:
    lm = load_causal_lm(str(folder), None, Dtype.fp32)
    packs = enable_packing(backbone_of(lm))
    base = FrozenBase(lm, str(folder))
    base.packs = packs
    return base


def read_rows(*, packed: bool) -> Sequences:
    generator = torch.Generator().manual_seed(1)
    mask = torch.tensor([[True] * 4, [True] * 2 + [False] * 2, [True] * 3 + [False]])
    rollout = Rollout(
        prompt_ids=torch.randint(3, 11, (3, 3), generator=generator),
        prompt_mask=torch.ones(3, 3, dtype=torch.bool),
        response_ids=torch.randint(3, 11, (3, 4), generator=generator),
        response_mask=mask,
        turn=torch.zeros(3, 4, dtype=torch.long),
        length=mask.sum(dim=1),
        logprobs=torch.zeros(3, 4),
        behavior_logprobs=torch.zeros(3, 4),
        texts=["", "", ""],
        finished=torch.ones(3, dtype=torch.bool),
        detached=[[], [], []],
    )
    return build_sequences(rollout, torch.arange(3), packed=packed)


def moved(adapter: Adapter, seed: int = 0) -> Adapter:
    """The same adapter with random changes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return adapter


def test_dora_matches_peft(folder: Path, tmp_path: Path) -> None:
    config, ids = replace(LORA, use_dora=True), torch.arange(3, 9)[None]
    half = FrozenBase(load_causal_lm(str(folder), None, Dtype.bf16), str(folder))
    new = half.add_adapter(config, "actor", 0)
    with torch.no_grad():
        plain = half.lm(input_ids=ids).logits
        with new.activate():
            assert torch.equal(half.lm(input_ids=ids).logits, plain)

    base = FrozenBase(load_causal_lm(str(folder), None, Dtype.fp32), str(folder))
    adapter = moved(base.add_adapter(config, "actor", 0))
    with torch.no_grad(), adapter.activate():  # factors computed without gradients are not reused with them
        base.lm(input_ids=ids)
    with adapter.activate():
        base.lm(input_ids=ids).logits.square().sum().backward()
    adapter.save(tmp_path, weights_of(adapter))
    loaded = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), tmp_path, is_trainable=True)
    loaded(input_ids=ids).logits.square().sum().backward()
    expected = {name.replace(".default", ""): weight.grad for name, weight in loaded.named_parameters()}
    compared = 0
    for path in adapter.scales:
        own = getattr(adapter, path.replace(".", "/"))
        for part, name in {"A": "lora_A.weight", "B": "lora_B.weight", "M": "lora_magnitude_vector.weight"}.items():
            wanted = expected[f"base_model.model.{path}.{name}"]
            torch.testing.assert_close(own[part].weight.grad, wanted, atol=1e-4, rtol=1e-4)
            compared += 1
    assert compared == 3 * len(adapter.scales)


def test_dora_factors_follow_weights(base: FrozenBase) -> None:
    adapter, ids = moved(base.add_adapter(replace(LORA, use_dora=True), "actor", 0)), torch.arange(3, 9)[None]
    for seed in (1, 2):
        for parameter in moved(adapter, seed).parameters():
            parameter.data.mul_(1.0)
        with torch.no_grad(), adapter.activate():
            kept = base.lm(input_ids=ids).logits
        with adapter.activate():
            torch.testing.assert_close(base.lm(input_ids=ids).logits, kept, atol=1e-6, rtol=1e-6)


def weights_of(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def plain_model(folder: Path) -> Policy:
    return Policy(load_causal_lm(str(folder), None, Dtype.fp32)).eval()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("init", list(AdapterInit))
def test_new_adapter_equals_base(base: FrozenBase, folder: Path, init: AdapterInit, packed: bool) -> None:
    sequences = read_rows(packed=packed)
    expected = plain_model(folder)(read_rows(packed=False), **OPTIONS).logprobs
    new = AdapterPolicy(base, base.add_adapter(replace(LORA, init=init), "actor", 0)).eval()
    assert new.packs
    torch.testing.assert_close(new(sequences, **OPTIONS).logprobs, expected, atol=1e-6, rtol=1e-6)
    moved(new.adapter)
    assert not torch.allclose(new(sequences, **OPTIONS).logprobs, expected, atol=1e-2)
    reference = AdapterPolicy(base, None).eval()(sequences, **OPTIONS).logprobs
    torch.testing.assert_close(reference, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("rslora", [False, True])
def test_adapter_matches_merged_model_and_peft(
    base: FrozenBase, folder: Path, tmp_path: Path, rslora: bool, dora: bool
) -> None:
    config = replace(LORA, use_rslora=rslora, use_dora=dora)
    other, adapter = moved(base.add_adapter(LORA, "actor", 0), 5), moved(base.add_adapter(config, "actor", 0))
    policy, sequences = AdapterPolicy(base, adapter).eval(), read_rows(packed=False)
    packed = policy(read_rows(packed=True), **OPTIONS).logprobs
    logprobs = policy(sequences, **OPTIONS).logprobs
    assert not torch.allclose(AdapterPolicy(base, other).eval()(sequences, **OPTIONS).logprobs, logprobs, atol=1e-2)
    (actor,) = policy.save(tmp_path / "full", weights_of(policy), NOTHING, merged=True)
    torch.testing.assert_close(packed, logprobs, atol=1e-5, rtol=1e-5)
    merged = Policy(load_causal_lm(str(actor), None, Dtype.fp32)).eval()
    torch.testing.assert_close(merged(sequences, **OPTIONS).logprobs, logprobs, atol=1e-5, rtol=1e-5)
    (alone,) = policy.save(tmp_path / "adapter", weights_of(policy), NOTHING, merged=False)
    assert {path.name for path in alone.iterdir()} >= set(FILES)
    loaded = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), alone).eval()
    ids = torch.arange(3, 9)[None]
    with policy.use_adapter():
        expected = base.lm(input_ids=ids).logits
    torch.testing.assert_close(loaded(input_ids=ids).logits, expected, atol=1e-5, rtol=1e-5)
    for place in (actor, alone):  # both hold the adapter, to start from it
        again = base.add_adapter(config, "actor", 9)
        again.load(place, "actor.adapter")
        assert all(torch.equal(one, two) for one, two in zip(again.parameters(), adapter.parameters(), strict=True))


def test_merge_into_bf16_base_keeps_small_changes(folder: Path, tmp_path: Path) -> None:
    lm = load_causal_lm(str(folder), None, Dtype.bf16)
    base = FrozenBase(lm, str(folder))
    adapter = base.add_adapter(LORA, "actor", 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(2e-3 * torch.randn(parameter.shape, generator=generator))  # products far below a bf16 step
    policy = AdapterPolicy(base, adapter).eval()
    (actor,) = policy.save(tmp_path / "fp32", weights_of(policy), NOTHING, merged=True)
    (rounded,) = policy.save(tmp_path / "bf16", weights_of(policy), NOTHING, merged=True, merged_dtype=torch.bfloat16)
    ids = torch.arange(3, 9)[None]

    def logits(model: Any) -> Tensor:
        with torch.no_grad(), compute_in_float32(model):
            return model(input_ids=ids).logits.float()

    with policy.use_adapter():
        expected = logits(lm)
    effect = expected - logits(lm)
    merged, lossy = (AutoModelForCausalLM.from_pretrained(place) for place in (actor, rounded))
    assert (merged.dtype, lossy.dtype) == (torch.float32, torch.bfloat16)
    assert (logits(merged) - expected).norm() < 0.01 * effect.norm()
    assert (logits(lossy) - expected).norm() > 0.5 * effect.norm()


def test_gradients_match_merged_weights(base: FrozenBase, folder: Path, tmp_path: Path) -> None:
    adapter, sequences = moved(base.add_adapter(LORA, "actor", 0)), read_rows(packed=False)
    policy = AdapterPolicy(base, adapter)
    policy(sequences, **OPTIONS).logprobs.sum().backward()
    whole = load_causal_lm(str(folder), None, Dtype.fp32)
    whole.load_state_dict(base.merge_adapter(adapter, weights_of(adapter)))
    Policy(whole)(sequences, **OPTIONS).logprobs.sum().backward()
    for path, scale in adapter.scales.items():
        change = whole.get_submodule(path).weight.grad  # of W' = W + scale B A
        down, up = (getattr(adapter, path.replace(".", "/"))[part].weight for part in "AB")
        torch.testing.assert_close(up.grad, scale * change @ down.T, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(down.grad, scale * up.T @ change, atol=1e-5, rtol=1e-4)
        assert float(down.grad.norm()) > 1e-4
    assert not any(parameter.grad is not None for name, parameter in base.lm.named_parameters() if "lora" not in name)


def test_checkpointing_recomputes_with_same_adapter(base: FrozenBase) -> None:
    sequences = read_rows(packed=False)
    adapter, other = moved(base.add_adapter(LORA, "actor", 0)), moved(base.add_adapter(LORA, "actor", 0), 7)
    policy = AdapterPolicy(base, adapter).train()

    def gradients() -> list[Tensor]:
        adapter.zero_grad()
        loss = policy(sequences, **OPTIONS).logprobs.sum()
        AdapterPolicy(base, other).train()(sequences, **OPTIONS)  # another adapter runs before the backward pass
        loss.backward()
        return [parameter.grad.clone() for parameter in adapter.parameters()]

    expected = gradients()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        base.checkpoint_gradients()
    assert base.lm.is_gradient_checkpointing
    for actual, wanted in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-6, rtol=1e-5)
    assert all(parameter.grad is None for parameter in other.parameters())


def test_critic_matches_merged_model(base: FrozenBase, tmp_path: Path) -> None:
    sequences = read_rows(packed=False)
    adapter = moved(base.add_adapter(LORA, "critic", 0))
    head = ValueHead(ValueHeadConfig(16, 4))
    torch.nn.init.normal_(head.out.weight)
    critic = AdapterCritic(adapter, head).eval()
    (full,) = critic.save(tmp_path / "full", weights_of(critic), NOTHING, merged=True)
    values = critic(sequences)
    assert values.shape == (3, 5)
    torch.testing.assert_close(ValueModel.from_pretrained(full).eval()(sequences), values, atol=1e-5, rtol=1e-5)
    (alone,) = critic.save(tmp_path / "own", weights_of(critic), NOTHING, merged=False)
    for place in (full, alone):
        again = AdapterCritic(base.add_adapter(LORA, "critic", 3), ValueHead(ValueHeadConfig(16, 4))).eval()
        again.load(place, "critic.warm_start")
        assert torch.equal(again(sequences), values)
    with pytest.raises(PreflightError, match=r"value_head_hidden_dim is 4, and critic.value_head_hidden_dim=None"):
        AdapterCritic(base.add_adapter(LORA, "critic", 3), ValueHead(ValueHeadConfig(16))).load(
            alone, "critic.warm_start"
        )


def test_adapter_initialisation_deterministic(base: FrozenBase) -> None:
    before = torch.get_rng_state()
    one, two, other = (weights_of(base.add_adapter(LORA, "actor", seed)) for seed in (4, 4, 5))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_saved_adapter_bytes_deterministic(base: FrozenBase, tmp_path: Path) -> None:
    adapter = base.add_adapter(LORA, "actor", 1)
    found = set()
    for number in range(20):
        adapter.save(tmp_path / str(number), weights_of(adapter))
        found.add((tmp_path / str(number) / FILES[1]).read_bytes())
    assert len(found) == 1
    with safe_open(tmp_path / "0" / FILES[1], "pt") as file:
        assert file.metadata() == {"base": base.fingerprint, "format": "pt"}
    again = base.add_adapter(LORA, "again", 2)
    again.load(tmp_path / "0", "actor.adapter")
    assert all(torch.equal(value, weights_of(adapter)[name]) for name, value in weights_of(again).items())


def test_rows_of_several_adapters_match_separate(base: FrozenBase) -> None:
    configs = [
        replace(LORA, use_dora=True),
        replace(LORA, rank=2, use_rslora=True),
        replace(LORA, target_modules=["q_proj", "up_proj"]),
    ]
    policies = [AdapterPolicy(base, moved(base.add_adapter(one, "actor", 0), seed)) for seed, one in enumerate(configs)]
    ids, rows = torch.randint(3, 11, (5, 6)), torch.tensor([2, 0, 1, 0, 2])
    expected = []
    for row, number in zip(ids, rows, strict=True):
        with policies[number].use_adapter():
            expected.append(base.lm(input_ids=row[None]).logits)
    with base.policies_by_row(policies) as select:
        select(rows)
        actual = base.lm(input_ids=ids).logits
        select(rows[:1])
        again = base.lm(input_ids=ids[:1]).logits
    torch.testing.assert_close(actual, torch.cat(expected), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(again, expected[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dora", [False, True])
def test_transposed_maps(dora: bool) -> None:
    torch.manual_seed(0)
    lm = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=32, n_embd=16, n_layer=1, n_head=2)).eval()
    clean = GPT2LMHeadModel(lm.config).eval()
    base = FrozenBase(lm, "gpt2")
    adapter = moved(base.add_adapter(replace(LORA, use_dora=dora), "actor", 0))
    clean.load_state_dict(base.merge_adapter(adapter, weights_of(adapter)))
    ids = torch.arange(4, 12)[None]
    with adapter.activate():
        torch.testing.assert_close(lm(input_ids=ids).logits, clean(input_ids=ids).logits, atol=1e-5, rtol=1e-5)
    assert any("c_attn" in path for path in adapter.scales)


def logits(base: FrozenBase, adapter: Adapter) -> Tensor:
    with torch.no_grad(), adapter.activate():
        return base.lm(input_ids=torch.arange(3, 9)[None]).logits


MERGE = {"adapter_mismatch": AdapterMismatch.merge}


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ({"rank": 2, "target_modules": ["q_proj", "v_proj"]}, {"rank": 3, "target_modules": ["k_proj", "v_proj"]}),
        ({"rank": 4, "target_modules": ["q_proj"]}, {"rank": 2}),
        ({"alpha": 9.0}, {"alpha": 2.0}),
        ({"use_rslora": True}, {}),
        ({}, {"use_rslora": True, "rank": 5}),
        ({"rank_pattern": {"q_proj": 5}, "alpha_pattern": {"v_proj": 1.0}}, {"rank": 2}),
        ({"rank": 2}, {"rank_pattern": {"q_proj": 4}}),
        ({}, {}),
    ],
)
def test_adapter_mismatch_merge(
    base: FrozenBase, folder: Path, tmp_path: Path, earlier: dict[str, Any], later: dict[str, Any]
) -> None:
    first = moved(base.add_adapter(replace(LORA, **earlier), "actor", 0))
    first.save(tmp_path / "first", weights_of(first))
    config = replace(LORA, **later, **MERGE)
    options: dict[str, Any] = {"earlier": str(tmp_path / "first"), "key": "actor.adapter"}
    second = base.add_adapter(config, "actor", 1, **options)
    second.load(tmp_path / "first", "actor.adapter")
    torch.testing.assert_close(logits(base, second), logits(base, first), atol=1e-5, rtol=1e-5)
    assert (
        second.scales.keys() == first.scales.keys() | base.add_adapter(config, "actor", 1, earlier=None).scales.keys()
    )
    for path in first.scales:
        ranks = [one.get_submodule(path.replace(".", "/"))["A"].weight.shape[0] for one in (first, second)]
        assert ranks[1] >= ranks[0]
        down = second.get_submodule(path.replace(".", "/"))["A"].weight
        assert (down.norm(dim=1) > 0).all(), "rows beyond the earlier rank are trainable"
    empty = empty_model(base.lm.config)
    shape = add_adapter(actor_shape(empty), empty, config, "actor", "x", **options)
    assert shape.trained_parameters == sum(weight.numel() for weight in second.parameters())
    second.save(tmp_path / "second", weights_of(second))  # as in checkpoints and PEFT
    again = base.add_adapter(config, "actor", 2, **options)
    again.load(tmp_path / "second", "checkpoint")
    assert all(torch.equal(one, two) for one, two in zip(again.parameters(), second.parameters(), strict=True))
    loaded = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), tmp_path / "second").eval()
    with torch.no_grad():
        actual = loaded(input_ids=torch.arange(3, 9)[None]).logits
    torch.testing.assert_close(actual, logits(base, first), atol=1e-5, rtol=1e-5)
    own = load_adapter(base, tmp_path / "second", "checkpoint")
    assert torch.equal(logits(base, own), logits(base, second))


def test_rank_and_alpha_patterns_match_peft(base: FrozenBase, folder: Path, tmp_path: Path) -> None:
    patterns = {"rank_pattern": {"self_attn.q_proj": 6, "up_.*": 2}, "alpha_pattern": {"v_proj": 20.0}}
    config = replace(LORA, **patterns)
    adapter = moved(base.add_adapter(config, "actor", 0))
    theirs = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(folder),
        peft.LoraConfig(r=3, lora_alpha=5, target_modules=[path for path in adapter.scales], **patterns),
    )
    layers = {path: theirs.base_model.model.get_submodule(path) for path in adapter.scales}
    assert adapter.scales == {path: layer.scaling["default"] for path, layer in layers.items()}
    for path, layer in layers.items():
        assert layer.r["default"] == adapter.get_submodule(path.replace(".", "/"))["A"].weight.shape[0]
    merged = AutoModelForCausalLM.from_pretrained(folder)
    merged.load_state_dict(base.merge_adapter(adapter, weights_of(adapter)))
    with torch.no_grad():
        actual = merged(input_ids=torch.arange(3, 9)[None]).logits
    torch.testing.assert_close(actual, logits(base, adapter), atol=1e-5, rtol=1e-5)
    theirs.save_pretrained(tmp_path / "theirs")
    load_adapter(base, tmp_path / "theirs", "actor.adapter")
    with pytest.raises(PreflightError, match=r"its rank_pattern is .* and not {}; set rank_pattern="):
        base.add_adapter(LORA, "actor", 0).load(tmp_path / "theirs", "actor.adapter")
    with pytest.raises(ConfigError, match="nothing matches no module of the adapter"):
        base.add_adapter(replace(LORA, rank_pattern={"nothing": 2}), "actor", 0)
    with pytest.raises(ConfigError, match=r"actor.rank=17 exceeds the width of .*q_proj"):
        base.add_adapter(replace(LORA, rank_pattern={"q_proj": 17}), "actor", 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bias": "all"}, "its bias is all, .*: biases belong to the base"),
        ({"modules_to_save": ["lm_head"]}, "its modules_to_save is .*: whole modules belong to the base"),
        ({"target_parameters": ["mlp.experts"]}, "not on expert tensors"),
    ],
)
def test_unsupported_adapter_settings_rejected(saved: Path, changes: dict, words: str) -> None:
    config = json.loads((saved / FILES[0]).read_text())
    (saved / FILES[0]).write_text(json.dumps(config | changes))
    with pytest.raises(PreflightError, match=words):
        read_adapter(saved, "actor.adapter")


@pytest.fixture
def saved(base: FrozenBase, tmp_path: Path) -> Path:
    adapter = moved(base.add_adapter(LORA, "actor", 0))
    adapter.save(tmp_path / "saved", weights_of(adapter))
    return tmp_path / "saved"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 4}, "its rank is 3 and not 4; set rank=3"),
        ({"alpha": 6.0}, "its alpha is 5 and not 6.0; set alpha=5"),
        ({"use_rslora": True}, "its use_rslora is false and not True"),
        ({"target_modules": ["q_proj"]}, "it does not fit the base .* with these target_modules: it also has"),
    ],
)
def test_different_adapter_settings_rejected(base: FrozenBase, saved: Path, change: dict, message: str) -> None:
    with pytest.raises(PreflightError, match=f"actor.adapter=.*{message}"):
        base.add_adapter(replace(LORA, **change), "actor", 0).load(saved, "actor.adapter")


def test_adapter_of_other_base_rejected(saved: Path, tmp_path: Path) -> None:
    other = model_folder(tmp_path / "other", seed=1)
    base = FrozenBase(load_causal_lm(str(other), None, Dtype.fp32), str(other))
    with pytest.raises(PreflightError, match="it was made for another base than other"):
        base.add_adapter(LORA, "actor", 0).load(saved, "actor.adapter")
    stored = load_file(saved / FILES[1])
    name = next(name for name in stored if name.endswith("q_proj.lora_A.weight"))
    save_file(stored | {name: torch.zeros(3, 8)}, saved / FILES[1])
    with pytest.raises(
        PreflightError, match=r"made for another base: .*q_proj.lora_A.weight is \[3, 8\], .* \[3, 16\]"
    ):
        base.add_adapter(LORA, "actor", 0).load(saved, "actor.adapter")


def test_fingerprint_independent_of_dtype(folder: Path, base: FrozenBase) -> None:
    half = FrozenBase(load_causal_lm(str(folder), None, Dtype.bf16), str(folder))
    assert half.fingerprint == base.fingerprint
    assert {parameter.dtype for parameter in half.add_adapter(LORA, "actor", 0).parameters()} == {torch.bfloat16}


def test_other_adapter_kinds_and_empty_folders_rejected(base: FrozenBase, saved: Path) -> None:
    config = json.loads((saved / FILES[0]).read_text())
    (saved / FILES[0]).write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(PreflightError, match="its use_dora is true and not False; set use_dora=true"):
        base.add_adapter(LORA, "actor", 0).load(saved, "actor.adapter")
    (saved / FILES[0]).unlink()
    with pytest.raises(PreflightError, match=r"has no adapter; use a folder with adapter_config\.json"):
        base.add_adapter(LORA, "actor", 0).load(saved, "actor.adapter")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_modules": ["q_proj", "c_attn"]}, "names c_attn, and .* has no such module; .* q_proj k_proj"),
        ({"target_modules": ["lm_head"]}, "names lm_head, no linear map within"),
        ({"rank": 17}, "actor.rank=17 exceeds the width of .*; use at most 16"),
    ],
)
def test_invalid_settings_rejected(base: FrozenBase, change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        base.add_adapter(replace(LORA, **change), "actor", 0)


def test_uncalled_map_rejected(folder: Path) -> None:
    lm = load_causal_lm(str(folder), None, Dtype.fp32)
    layer = lm.model.layers[0].mlp
    layer.forward = lambda states: torch.nn.functional.linear(
        torch.nn.functional.linear(states, layer.up_proj.weight), layer.down_proj.weight
    )
    with pytest.raises(PreflightError, match=r"it reads model.layers.0.mlp.\w+_proj without calling it"):
        FrozenBase(lm, str(folder)).add_adapter(LORA, "actor", 0)
