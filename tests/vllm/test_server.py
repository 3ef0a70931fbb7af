"""`rollout.vllm.mode=server`, with a real server: samples, weights, adapters."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_engine import build_engine_model, build_model, build_request, build_settings, build_tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from ippo_cli.config.errors import EngineError
from ippo_cli.rollout.engine import EngineOutput, EngineRequest
from ippo_cli.rollout.tensor_hash import TensorHash, tensor_hash
from ippo_cli.rollout.vllm.server import ServerEngine

pytestmark = [pytest.mark.needs_vllm, pytest.mark.slow]
CPU = torch.device("cpu")
TOKENIZER = build_tokenizer()
MODEL = build_model(TOKENIZER)
ENGINE_MODEL = build_engine_model(MODEL, TOKENIZER, max_adapters=2, max_adapter_rank=4)
PROMPTS = [[5 + key, 60, 70, 80 + key] for key in range(6)]
RANK, ALPHA = 4, 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerEngine]:
    log_path = tmp_path_factory.mktemp("run") / "vllm.log"
    engine = ServerEngine(ENGINE_MODEL, build_settings(), CPU, log_path=log_path)
    engine.start()
    yield engine
    engine.close()


@pytest.fixture
def engine(server: ServerEngine) -> ServerEngine:
    """The server with the weights of `MODEL`."""
    assert server.load_weights(weights_of(MODEL), 1) == []
    return server


def weights_of(model: LlamaForCausalLM) -> list[tuple[str, Tensor]]:
    return [(name, parameter.detach()) for name, parameter in model.named_parameters()]


def hashes_of(model: LlamaForCausalLM) -> dict[str, TensorHash]:
    return {name: tensor_hash(tensor) for name, tensor in weights_of(model)}


def complete(engine: ServerEngine, requests: Sequence[EngineRequest]) -> list[EngineOutput]:
    for request in requests:
        engine.submit(request)
    outputs: dict[int, EngineOutput] = {}
    while len(outputs) < len(requests):
        outputs |= {output.key: output for output in engine.step()}
    return [outputs[request.key] for request in requests]


@torch.no_grad()
def compute_logits(model: torch.nn.Module, prompt: list[int], ids: list[int]) -> Tensor:
    """Logits of the distribution of each token, `[len(ids), V]`."""
    return model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].float()


def difference(logits: Tensor, output: EngineOutput) -> float:
    logprobs = torch.log_softmax(logits, dim=-1)[range(len(output.ids)), output.ids]
    return (logprobs - torch.tensor(output.logprobs)).abs().max().item()


def test_logprobs_equal_those_of_transformers(engine: ServerEngine) -> None:
    requests = [build_request(key, prompt, seed=key, temperature=0.7) for key, prompt in enumerate(PROMPTS)]
    for prompt, output in zip(PROMPTS, complete(engine, requests), strict=True):
        assert difference(compute_logits(MODEL, prompt, output.ids) / 0.7, output) < 2e-5
        assert output.versions == [1] * len(output.ids)


@pytest.mark.parametrize(
    "changes", [{"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}, {"repetition_penalty": 1.4}, {"min_new_tokens": 16}]
)
def test_logprobs_are_of_the_filtered_distribution(engine: ServerEngine, changes: dict[str, float]) -> None:
    stop_ids = tuple(range(1, 120)) if "min_new_tokens" in changes else (1,)
    requests = [
        build_request(key, prompt, seed=key, stop_ids=stop_ids, **changes) for key, prompt in enumerate(PROMPTS)
    ]
    for prompt, output in zip(PROMPTS, complete(engine, requests), strict=True):
        logits = compute_logits(MODEL, prompt, output.ids)
        for place, row in enumerate(logits):
            probabilities = row.softmax(0)
            if "top_k" in changes:
                row[probabilities < probabilities.topk(5).values[-1]] = -math.inf
            if "top_p" in changes:
                values, order = probabilities.sort(descending=True)
                row[order[values.cumsum(0) - values >= 0.6]] = -math.inf
            if "min_p" in changes:
                row[probabilities < 0.2 * probabilities.max()] = -math.inf
            if "repetition_penalty" in changes:
                seen = list({*prompt, *output.ids[:place]})
                row[seen] = torch.where(row[seen] > 0, row[seen] / 1.4, row[seen] * 1.4)
            if "min_new_tokens" in changes and place < 16:
                row[list(stop_ids)] = -math.inf
        assert difference(logits, output) < 2e-5
        assert len(output.ids) == 16 or "min_new_tokens" not in changes


def test_greedy_tokens_are_the_likeliest(engine: ServerEngine) -> None:
    for prompt, output in zip(
        PROMPTS,
        complete(engine, [build_request(key, prompt, greedy=True) for key, prompt in enumerate(PROMPTS)]),
        strict=True,
    ):
        assert compute_logits(MODEL, prompt, output.ids).argmax(dim=1).tolist() == output.ids


def test_response_ends_with_its_stop_token(engine: ServerEngine) -> None:
    [whole] = complete(engine, [build_request(0, PROMPTS[0], seed=5)])
    stop = whole.ids[6]
    [ended] = complete(engine, [build_request(0, PROMPTS[0], seed=5, stop_ids=(stop,))])
    assert ended.ids == whole.ids[: whole.ids.index(stop) + 1]


def test_response_ends_with_its_stop_string(engine: ServerEngine) -> None:
    changes = {"seed": 7, "top_k": 20, "max_new_tokens": 40, "stop_ids": ()}
    [whole] = complete(engine, [build_request(0, PROMPTS[0], **changes)])
    place = next(place for place in range(2, 38) if all(35 < token < 90 for token in whole.ids[place : place + 2]))
    stop = TOKENIZER.decode(whole.ids[place : place + 2])
    [ended] = complete(engine, [build_request(0, PROMPTS[0], stop_strings=(stop,), **changes)])
    assert ended.ids == whole.ids[: place + 2]
    assert ended.logprobs == pytest.approx(whole.logprobs[: place + 2], abs=1e-5)


def test_special_tokens_count_in_stop_strings(engine: ServerEngine) -> None:
    changes = {"stop_ids": (), "temperature": 2.0, "max_new_tokens": 110}
    requests = [build_request(key, PROMPTS[key], seed=key, **changes) for key in range(6)]
    ending = [build_request(key, PROMPTS[key], seed=key, stop_strings=("<pad>",), **changes) for key in range(6)]
    wholes, ended = complete(engine, requests), complete(engine, ending)
    assert any(0 in whole.ids for whole in wholes)
    for whole, short in zip(wholes, ended, strict=True):
        assert short.ids == whole.ids[: whole.ids.index(0) + 1 if 0 in whole.ids else None]


def test_samples_depend_on_their_seed_alone(engine: ServerEngine) -> None:
    [alone] = complete(engine, [build_request(0, PROMPTS[2], seed=11)])
    together = complete(engine, [build_request(key, PROMPTS[key % 6], seed=9 + key) for key in range(12)])
    again = next(output for output in together if output.key == 2)
    assert again.ids == alone.ids
    [other] = complete(engine, [build_request(0, PROMPTS[2], seed=12)])
    assert other.ids != alone.ids


def test_later_weights_replace_earlier_ones(engine: ServerEngine) -> None:
    complete(engine, [build_request(0, PROMPTS[0] * 10)])  # fills the prefix cache
    later = build_model(TOKENIZER, seed=5)
    assert engine.load_weights(weights_of(later), 2) == []
    assert engine.verify_weights(hashes_of(later)) == []
    [output] = complete(engine, [build_request(0, PROMPTS[0] * 10)])
    assert difference(compute_logits(later, PROMPTS[0] * 10, output.ids), output) < 2e-5
    assert set(output.versions) == {2}


def test_chunks_of_weights_are_loaded_as_a_whole(engine: ServerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ippo_cli.rollout.vllm.weight_transfer.CHUNK_BYTES", 20_000)
    later = build_model(TOKENIZER, seed=6)
    assert engine.load_weights(weights_of(later), 2) == []
    assert engine.verify_weights(hashes_of(later)) == []


def test_tensors_are_read_before_the_next_one_is_made(engine: ServerEngine) -> None:
    later = build_model(TOKENIZER, seed=7)

    def gather() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights_of(later):
            gathered = tensor.clone()
            yield name, gathered
            gathered.zero_()

    engine.load_weights(gather(), 2)
    assert engine.verify_weights(hashes_of(later)) == []


def test_verification_names_a_changed_tensor(engine: ServerEngine) -> None:
    assert engine.verify_weights(hashes_of(MODEL)) == []
    engine._rpc("ippo_corrupt", "model.layers.1.mlp.down_proj.weight")
    assert engine.verify_weights(hashes_of(MODEL)) == ["model.layers.1.mlp.down_proj.weight"]


def test_verification_names_a_tensor_that_was_not_sent(engine: ServerEngine) -> None:
    later = build_model(TOKENIZER, seed=8)
    name = "model.layers.0.input_layernorm.weight"
    later.get_parameter(name).data += 1.0
    engine.load_weights([(other, tensor) for other, tensor in weights_of(later) if other != name], 2)
    assert engine.verify_weights(hashes_of(later)) == [name]


def test_verification_names_tensors_of_another_agent(engine: ServerEngine) -> None:
    other = build_model(TOKENIZER, seed=9)
    assert "lm_head.weight" in engine.verify_weights(hashes_of(other))


def test_tensors_without_a_place_are_returned(engine: ServerEngine) -> None:
    engine._places = {}
    assert engine.load_weights([*weights_of(MODEL), ("model.rotary_emb.inv_freq", torch.zeros(4))], 3) == [
        "model.rotary_emb.inv_freq"
    ]
    engine._places = {}


def test_weights_replaced_during_a_response_show_in_its_versions(engine: ServerEngine) -> None:
    models, version = [MODEL], 1
    for _ in range(10):  # until a transfer falls into a response
        engine.submit(build_request(0, PROMPTS[0], stop_ids=(), max_new_tokens=120))
        time.sleep(0.02)
        models, version = [models[-1], build_model(TOKENIZER, seed=10 + version)], version + 1
        engine.load_weights(weights_of(models[1]), version)
        outputs: list[EngineOutput] = []
        while not outputs:
            outputs = engine.step()
        [output] = outputs
        first = output.versions.count(version - 1)
        assert output.versions == [version - 1] * first + [version] * (120 - first)
        before, after = (compute_logits(model, PROMPTS[0], output.ids) for model in models)
        assert difference(torch.cat([before[:first], after[first:]]), output) < 2e-5
        if 0 < first < 120:
            return
    raise AssertionError("every response had a single version")


def test_aborted_requests_end_in_the_server(engine: ServerEngine) -> None:
    for key in range(6):
        engine.submit(build_request(key, PROMPTS[key], stop_ids=(), max_new_tokens=120))
    engine.step()
    engine.abort()
    assert engine._client is not None
    for _ in range(50):
        text = engine._client.call("GET", "/metrics", timeout_s=5)
        running = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
        if running[0].endswith(" 0.0"):
            break
        engine.step()
    assert running[0].endswith(" 0.0")
    [output] = complete(engine, [build_request(0, PROMPTS[0])])
    assert output.key == 0


def add_adapter(
    seed: int, folder: Path, base: LlamaForCausalLM | None = None
) -> tuple[torch.nn.Module, dict[str, int]]:
    """A model with an adapter that is saved in a folder, and the hashes of its matrices as an engine has them."""
    base = build_model(TOKENIZER) if base is None else base
    torch.manual_seed(seed)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.0)
    adapted = get_peft_model(base, config).eval()
    hashes = {}
    for name, module in adapted.named_modules():
        if hasattr(module, "lora_B") and hasattr(module, "base_layer"):
            a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
            b.data.normal_(std=0.3)
            layer = name.removeprefix("base_model.model.")
            hashes |= {f"{layer}.A": tensor_hash(a), f"{layer}.B": tensor_hash(b * (ALPHA / RANK))}
    adapted.save_pretrained(folder)
    return adapted, hashes


def test_adapters_are_sampled_from_and_replaced(engine: ServerEngine, tmp_path: Path) -> None:
    loaded = {}
    folder = tmp_path / "earlier"
    add_adapter(7, folder)
    engine.load_adapter("first", folder, 7)
    engine.reuse(ENGINE_MODEL)
    engine.start()  # runs already
    for seed, name in ((1, "first"), (2, "second"), (3, "first")):
        folder = tmp_path / f"{name}{seed}"
        model, hashes = add_adapter(seed, folder)
        engine.load_adapter(name, folder, seed)
        assert engine.verify_adapter(name, hashes) == []
        loaded[name] = model, hashes, seed
    requests = [build_request(key, PROMPTS[key], adapter=name) for key, name in enumerate(("first", "second", "first"))]
    for request, output in zip(requests, complete(engine, requests), strict=True):
        assert request.adapter is not None
        model, _, seed = loaded[request.adapter]
        assert difference(compute_logits(model, list(request.prompt), output.ids), output) < 2e-5
        assert set(output.versions) == {seed}
    assert "model.layers.0.self_attn.qkv_proj.lora_A" in engine.verify_adapter("first", loaded["second"][1])


def test_another_engine_can_use_a_running_server(engine: ServerEngine, tmp_path: Path) -> None:
    assert engine.process is not None
    other = ServerEngine(ENGINE_MODEL, build_settings(), CPU, log_path=tmp_path / "log", url=engine.process.address)
    other.start()
    later = build_model(TOKENIZER, seed=3)
    assert other.load_weights(weights_of(later), 7) == []
    assert other.verify_weights(hashes_of(later)) == []
    [output] = complete(other, [build_request(0, PROMPTS[0])])
    assert set(output.versions) == {7}
    add_adapter(4, tmp_path / "adapter")
    engine.load_adapter("first", tmp_path / "adapter", 1)
    _, hashes = add_adapter(5, tmp_path / "later")
    other.load_adapter("first", tmp_path / "later", 2)
    assert other.verify_adapter("first", hashes) == []
    other.close()
    assert engine.process.is_running()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": torch.bfloat16}, "has another model: dtype is float32, not bfloat16"),
        ({"max_length": 512}, "takes 128 tokens .* --max-model-len 512"),
        ({"max_adapters": 3}, "room for 2 adapters.* --max-loras 3"),
    ],
)
def test_running_server_that_does_not_fit_is_refused(
    engine: ServerEngine, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    assert engine.process is not None
    model = build_engine_model(MODEL, TOKENIZER, **changes)
    address = engine.process.address
    with pytest.raises(EngineError, match=message):
        ServerEngine(model, build_settings(), CPU, log_path=tmp_path / "log", url=address).start()
    assert engine.process.is_running()


def test_rejected_request_is_an_error_with_the_servers_reason(engine: ServerEngine) -> None:
    with pytest.raises(EngineError, match="maximum"):
        complete(engine, [build_request(0, [5] * 200)])
    assert engine.process is None
