"""vLLM in this process: the same distributions as the models, transfers of weights and adapters, two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from ippo_cli.agents.agent import FrozenAgent
from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import EngineError
from ippo_cli.models.actor import Policy
from ippo_cli.models.tiny import byte_tokenizer
from ippo_cli.rollout.engine_generator import EngineGenerator
from ippo_cli.rollout.generator import HfGenerator, Request, SamplingStream
from ippo_cli.types import Completion

pytestmark = [pytest.mark.needs_vllm, pytest.mark.slow]

DRAWS = SamplingStream(seed=3, purpose="train/1")
TOKENIZER = byte_tokenizer()


def random_model(seed: int, dtype: torch.dtype = torch.float32, *, tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=TOKENIZER.eos_token_id,
        architectures=["LlamaForCausalLM"],
    )
    model = LlamaForCausalLM(config).to(dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(3.0)
    return model


class Sampler:
    """An agent with a random model, sampled by vLLM; the engine is reused with other sampling settings."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.policies = {"solo": FrozenAgent(name="solo", tokenizer=TOKENIZER, held_policy=Policy(model).eval())}
        self.generator: EngineGenerator | None = None

    @property
    def lm(self) -> Any:
        return self.policies["solo"].policy.lm

    def sample(self, count: int = 8, *, draws: SamplingStream = DRAWS, **settings: Any) -> list[Completion]:
        generator = self.prepare(**settings)
        generator.start_collection()
        return generator.generate(("solo",), requests(count), draws)

    def prepare(self, **settings: Any) -> EngineGenerator:
        """The generator with these settings."""
        rollout = load_config(["rollout=vllm", "rollout.max_new_tokens=24", "rollout.vllm.kv_cache_gib=0.05"]).rollout
        rollout = replace(rollout, **settings)
        from ippo_cli.rollout.vllm.build import build_vllm_generator

        made = build_vllm_generator(self.policies, rollout, {"solo": rollout})
        if self.generator is not None:  # keep the engine, which has the weights
            made._sources = self.generator._sources
            made._source_of = self.generator._source_of
        self.generator = made
        return made


def check_fault_ends_the_run(sampler: Sampler, parameter: str, fault: str, tensor: str) -> None:
    """A transfer after which a parameter of the engine is not what was sent; then a right one."""
    assert sampler.generator is not None
    engine, policy = sampler.generator._sources[0].engine, sampler.policies["solo"].policy
    load = engine.load_weights

    def load_wrongly(weights: Any, version: int) -> list[str]:
        unplaced = load(weights, version)
        engine._call("ippo_corrupt", parameter, fault)
        return unplaced

    engine.load_weights = load_wrongly  # type: ignore[method-assign]
    policy.copies += 1
    with pytest.raises(EngineError, match=tensor):
        sampler.generator.start_collection()
    engine.load_weights = load  # type: ignore[method-assign]
    sampler.generator.start_collection()


def requests(count: int) -> list[Request]:
    texts = [f"{row} + {row * 7} =" * (1 + row % 3) for row in range(count)]
    return [
        Request(agent="solo", prompt=TOKENIZER.encode(text, add_special_tokens=False), episode=row, index=row, turn=0)
        for row, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def sampler() -> Iterator[Sampler]:
    one = Sampler(random_model(0))
    yield one
    assert one.generator is not None
    one.generator.close()


@torch.no_grad()
def expected_logprobs(sampler: Sampler, request: Request, completion: Completion, **settings: Any) -> torch.Tensor:
    """Log-probabilities of the sampling distribution that `rollout=hf` has."""
    rollout = load_config(["rollout.max_new_tokens=24"]).rollout
    from ippo_cli.rollout.generator import make_sampling

    sampling = make_sampling(replace(rollout, **settings))
    ids = torch.tensor([[*request.prompt, *completion.ids.tolist()]])
    logits = sampler.lm(input_ids=ids).logits[0, len(request.prompt) - 1 : -1]
    found = []
    stops = torch.zeros(logits.shape[1], dtype=torch.bool)
    stops[TOKENIZER.eos_token_id] = True
    for place, token in enumerate(completion.ids.tolist()):
        seen = torch.zeros(1, logits.shape[1], dtype=torch.bool)
        seen[0, ids[0, : len(request.prompt) + place]] = True
        chosen = _logprob_of(
            logits[place][None],
            sampling,
            token,
            seen=seen if sampling.repetition_penalty != 1 else None,
            banned=stops[None] if place < sampling.min_new_tokens else None,
        )
        found.append(chosen)
    return torch.tensor(found)


def _logprob_of(logits: torch.Tensor, sampling: Any, token: int, **masks: Any) -> float:
    """The behaviour log-probability of a token, by inverting the sampling over uniform numbers."""
    from ippo_cli.rollout.sampling import _filter_logits

    if not sampling.is_filtered:
        return float(torch.log_softmax(logits / sampling.divisor, -1)[0, token])
    return float(
        torch.log_softmax(_filter_logits(logits.float(), sampling, masks["seen"], masks["banned"]), -1)[0, token]
    )


@pytest.mark.needs_first_engine
@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_experts_after_each_transfer(kind: str) -> None:
    torch.manual_seed(0)
    experts = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    shape = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokens = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": TOKENIZER.eos_token_id}
    config = AutoConfig.for_model(
        kind,
        vocab_size=len(TOKENIZER),
        **experts,
        **shape,
        **tokens,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        initializer_range=0.2,
    )
    config.architectures = [{"mixtral": "MixtralForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}[kind]]
    sampler = Sampler(AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval())
    for factor in (1.0, 1.3):
        with torch.no_grad():
            for parameter in sampler.lm.parameters():
                parameter.mul_(factor)
        sampler.policies["solo"].policy.copies += 1
        for request, one in zip(requests(4), sampler.sample(4), strict=True):
            torch.testing.assert_close(one.logprobs, expected_logprobs(sampler, request, one), atol=2e-4, rtol=0)
    assert sampler.generator is not None
    engine = sampler.generator._sources[0].engine
    experts = next(name for name in engine._call("ippo_parameters") if name.endswith("w13_weight"))
    for fault in ("experts", "swap:0:64:64"):
        check_fault_ends_the_run(sampler, experts, fault, "experts.0")
    sampler.generator.close()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"repetition_penalty": 1.3},
        {"min_new_tokens": 12},
        {"temperature": 1.4, "top_k": 20, "top_p": 0.9},
    ],
    ids=str,
)
def test_log_probabilities_are_those_of_rollout_hf(sampler: Sampler, settings: dict[str, Any]) -> None:
    completions = sampler.sample(**settings)
    assert len({tuple(one.ids.tolist()) for one in completions}) > 4
    for request, completion in zip(requests(8), completions, strict=True):
        expected = expected_logprobs(sampler, request, completion, **settings)
        torch.testing.assert_close(completion.behavior_logprobs, expected, atol=2e-4, rtol=0)
        minimum = settings.get("min_new_tokens", 0)
        assert TOKENIZER.eos_token_id not in completion.ids[:minimum].tolist()


def test_greedy_equals_rollout_hf(sampler: Sampler) -> None:
    greedy = replace(DRAWS, greedy=True)
    found = sampler.sample(draws=greedy)
    rollout = load_config(["rollout.max_new_tokens=24"]).rollout
    plain = HfGenerator(sampler.policies, rollout, {"solo": rollout})
    expected = plain.generate(("solo",), requests(8), greedy)
    assert [one.ids.tolist() for one in found] == [one.ids.tolist() for one in expected]
    assert [(one.text, one.finished) for one in found] == [(one.text, one.finished) for one in expected]


def test_samples_depend_on_their_seed_alone(sampler: Sampler) -> None:
    together = sampler.sample(8)
    generator = sampler.generator
    assert generator is not None
    alone = [generator.generate(("solo",), [request], DRAWS)[0] for request in requests(8)]
    assert [one.ids.tolist() for one in together] == [one.ids.tolist() for one in alone]
    other = sampler.sample(8, draws=replace(DRAWS, purpose="train/2"))
    assert [one.ids.tolist() for one in other] != [one.ids.tolist() for one in together]


def test_stop_strings_end_responses_and_are_kept(sampler: Sampler) -> None:
    plain = sampler.sample(8)
    stop = plain[0].text[3:5]
    for before, after in zip(plain, sampler.sample(8, stop_strings=[stop]), strict=True):
        place = before.text.find(stop)
        if place < 0:
            assert after.ids.tolist() == before.ids.tolist()
            continue
        assert after.finished
        assert after.text == before.text[: place + len(stop)]
        assert after.ids.tolist() == before.ids.tolist()[: len(after.ids)]


def test_limit_of_the_context(sampler: Sampler) -> None:
    generator = sampler.prepare(context_limit=40)
    generator.start_collection()
    prompt = TOKENIZER.encode("x" * 37, add_special_tokens=False)
    (one,) = generator.generate(("solo",), [Request(agent="solo", prompt=prompt, episode=0, index=0, turn=0)], DRAWS)
    assert len(one.ids) <= 3


def test_transfer_is_exact_and_a_corrupted_one_is_found(sampler: Sampler) -> None:
    sampler.sample(2)
    generator = sampler.generator
    assert generator is not None
    engine = generator._sources[0].engine
    name = "model.layers.1.self_attn.k_proj.weight"
    policy = sampler.policies["solo"].policy
    with torch.no_grad():
        dict(policy.lm.named_parameters())[name].mul_(1.5)
    stale = sampler.sample(2)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(
            stale[0].logprobs, expected_logprobs(sampler, requests(1)[0], stale[0]), atol=2e-4, rtol=0
        )
    policy.copies += 1
    fresh = sampler.sample(2)
    torch.testing.assert_close(
        fresh[0].logprobs, expected_logprobs(sampler, requests(1)[0], fresh[0]), atol=2e-4, rtol=0
    )
    load = engine.load_weights

    def load_corrupted(weights: Any, version: int) -> list[str]:
        unplaced = load(weights, version)
        engine._call("ippo_corrupt", "model.layers.1.self_attn.qkv_proj.weight")
        return unplaced

    engine.load_weights = load_corrupted  # type: ignore[method-assign]
    policy.copies += 1
    with pytest.raises(EngineError, match=name.replace("k_proj", "[kqv]_proj")):
        generator.start_collection()

    def load_all_but_one(weights: Any, version: int) -> list[str]:
        return load([(one, tensor) for one, tensor in weights if one != name], version)

    engine.load_weights = load_all_but_one  # type: ignore[method-assign]
    with torch.no_grad():
        dict(policy.lm.named_parameters())[name].mul_(1.5)
    policy.copies += 1
    with pytest.raises(EngineError, match="self_attn"):
        generator.start_collection()
    engine.load_weights = load  # type: ignore[method-assign]
    generator.start_collection()


ATTENTION = "model.layers.1.self_attn"


@pytest.mark.parametrize(
    ("parameter", "fault", "tensor"),
    [
        (f"{ATTENTION}.qkv_proj.weight", "swap:64:128:64", f"{ATTENTION}.k_proj.weight"),
        (f"{ATTENTION}.qkv_proj.weight", "swap:0:32:32", f"{ATTENTION}.q_proj.weight"),
        ("model.layers.0.mlp.gate_up_proj.weight", "swap:0:128:128", "model.layers.0.mlp.gate_proj.weight"),
        ("model.embed_tokens.weight", "roll", "model.embed_tokens.weight"),
        ("model.norm.weight", "", "model.norm.weight"),
    ],
    ids=["k and v exchanged", "heads permuted", "gate and up exchanged", "embedding shifted", "one element changed"],
)
def test_faults_of_a_transfer_end_the_run(sampler: Sampler, parameter: str, fault: str, tensor: str) -> None:
    sampler.sample(2)
    check_fault_ends_the_run(sampler, parameter, fault, tensor)


@pytest.mark.parametrize("tied", [True, False])
def test_bf16_transfer(tied: bool) -> None:
    sampler = Sampler(random_model(1, torch.bfloat16, tied=tied))
    for factor in (1.0, 1.2):
        with torch.no_grad():
            for parameter in sampler.lm.parameters():
                parameter.mul_(factor)
        sampler.policies["solo"].policy.copies += 1
        gaps = [
            (one.logprobs - expected_logprobs(sampler, request, one)).abs().mean()
            for request, one in zip(requests(4), sampler.sample(4), strict=True)
        ]
        assert float(torch.stack(gaps).mean()) < 0.1
    assert sampler.generator is not None
    sampler.generator.close()
