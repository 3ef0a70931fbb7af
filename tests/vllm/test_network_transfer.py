"""A running server at another address gets weights over the network: unchanged, verified, with time limits."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_engine import build_engine_model, build_model, build_request, build_settings, build_tokenizer

from ippo_cli.config.errors import EngineError
from ippo_cli.config.schema import WeightPath
from ippo_cli.rollout.tensor_hash import TensorHash, tensor_hash
from ippo_cli.rollout.vllm import server as server_module
from ippo_cli.rollout.vllm.server import ServerEngine
from ippo_cli.rollout.vllm.weight_transfer import NetworkTransfer, SharedMemoryTransfer

pytestmark = [pytest.mark.needs_vllm, pytest.mark.slow]
HOST = "127.0.0.2"
START_S = 600.0
TOKENIZER = build_tokenizer()
MODEL = build_model(TOKENIZER, hidden_size=256, num_layers=6)
ENGINE_MODEL = build_engine_model(MODEL, TOKENIZER, max_rows=4, max_adapters=1, max_adapter_rank=4)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Address and session of a server with another model's weights."""
    folder = tmp_path_factory.mktemp("server")
    build_model(TOKENIZER, seed=5, hidden_size=256, num_layers=6).save_pretrained(folder / "model")
    TOKENIZER.save_pretrained(folder / "model")
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ippo_cli.rollout.vllm.serve", str(folder / "model"), "--host", HOST]
    command += ["--port", str(port), "--dtype", "float32", "--enforce-eager", "--block-size", "32"]
    command += ["--max-model-len", "128", "--max-num-seqs", "4", "--kv-cache-memory-bytes", str(2**26)]
    command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"]
    command += ["--enable-lora", "--max-loras", "1", "--max-lora-rank", "8"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        end = time.monotonic() + START_S
        while "startup complete" not in (folder / "log").read_text():
            assert process.poll() is None, (folder / "log").read_text()[-3000:]
            assert time.monotonic() < end
            time.sleep(0.5)
        yield f"http://{HOST}:{port}", process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def make_engine(url: str, path: WeightPath, **settings: Any) -> ServerEngine:
    made = build_settings(weight_path=path, **settings)
    return ServerEngine(ENGINE_MODEL, made, torch.device("cpu"), log_path=Path("unused"), url=url)


def weights_of(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, parameter.detach()) for name, parameter in model.named_parameters()]


def hashes_of(model: torch.nn.Module) -> dict[str, TensorHash]:
    return {name: tensor_hash(tensor) for name, tensor in weights_of(model)}


@pytest.mark.parametrize("path", [WeightPath.network, WeightPath.auto])
def test_weights_are_the_trainers(server: tuple[str, int], path: WeightPath) -> None:
    engine = make_engine(server[0], path)
    engine.start()
    kind = NetworkTransfer if path is WeightPath.network else SharedMemoryTransfer
    assert isinstance(engine._transfer, kind)
    for version, seed in ((1, 0), (2, 7)):
        model = build_model(TOKENIZER, seed=seed, hidden_size=256, num_layers=6)
        start = time.perf_counter()
        assert engine.load_weights(weights_of(model), version) == []
        print(f"{path.value}: {time.perf_counter() - start:.2f} s for {sum(p.numel() for p in model.parameters())}")
        assert engine.verify_weights(hashes_of(model)) == []
        engine.submit(build_request(0, [5, 60, 70], stop_ids=()))
        outputs: list[Any] = []
        while not outputs:
            outputs = engine.step()
        logits = model(torch.tensor([[5, 60, 70, *outputs[0].ids]])).logits[0, 2:-1].float()
        logprobs = torch.log_softmax(logits, dim=-1)[range(16), outputs[0].ids]
        assert torch.allclose(logprobs, torch.tensor(outputs[0].logprobs), atol=5e-5)
        assert set(outputs[0].versions) == {version}
    engine.close()


def test_tensor_that_changed_on_the_way_is_named(server: tuple[str, int]) -> None:
    engine = make_engine(server[0], WeightPath.network)
    engine.start()
    name = "model.layers.3.mlp.down_proj.weight"
    changed = [(own, tensor + 1e-3 if own == name else tensor) for own, tensor in weights_of(MODEL)]
    assert engine.load_weights(changed, 3) == []
    assert engine.verify_weights(hashes_of(MODEL)) == [name]
    engine.close()


def test_server_that_reads_other_memory_gets_weights_over_the_network(
    server: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, or on another host that has the same folder on a shared disk."""
    monkeypatch.setattr(server_module, "boot_id", lambda: "of another host")
    engine = make_engine(server[0], WeightPath.auto)
    engine.start()
    assert isinstance(engine._transfer, NetworkTransfer)
    engine.close()
    with pytest.raises(EngineError, match=r"runs on another host.* rollout.vllm.weight_path=auto"):
        make_engine(server[0], WeightPath.shared_memory).start()


def test_listening_at_an_address_of_another_host_is_an_error(server: tuple[str, int]) -> None:
    engine = make_engine(server[0], WeightPath.network, listen_address="192.0.2.1:29600")
    engine.start()
    with pytest.raises(EngineError, match=r"url=http://127.0.0.2:\d+: .*cannot listen at 192.0.2.1:29600"):
        engine.load_weights(weights_of(MODEL), 4)


def test_adapter_is_sent_and_removed(server: tuple[str, int], tmp_path: Path) -> None:
    from test_server import add_adapter

    engine = make_engine(server[0], WeightPath.network)
    engine.start()
    assert engine.load_weights(weights_of(MODEL), 5) == []
    folder = tmp_path / "adapter"
    _, hashes = add_adapter(3, folder, build_model(TOKENIZER, hidden_size=256, num_layers=6))
    engine.load_adapter("first", folder, 1)
    assert engine.verify_adapter("first", hashes) == []
    assert engine._transfer is not None
    with engine._transfer.share_folder(folder) as path:
        assert Path(path) != folder
        assert {file.name: file.read_bytes() for file in Path(path).iterdir()} == {
            file.name: file.read_bytes() for file in folder.iterdir()
        }
    assert not Path(path).exists()
    engine.close()


def test_server_that_hangs_ends_a_transfer(server: tuple[str, int]) -> None:
    url, session = server
    engine = make_engine(url, WeightPath.network, request_timeout_s=4.0)
    engine.start()
    workers = [int(line) for line in subprocess.check_output(["pgrep", "-s", str(session)], text=True).split()]
    stopped = False

    def stop_after_some() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal stopped
        for number, weight in enumerate(weights_of(MODEL)):
            if number == 5:
                for worker in workers:
                    os.kill(worker, signal.SIGSTOP)
                stopped = True
            yield weight
        for number in range(200):  # more than the system keeps for a receiver that reads nothing
            yield f"more.{number}", torch.zeros(1 << 18)

    start = time.monotonic()
    with pytest.raises(EngineError, match=r"over the network: at the tensor \S+, it took nothing for 4 s"):
        engine.load_weights(stop_after_some(), 6)
    assert stopped
    assert time.monotonic() - start < 30
    for worker in workers:
        os.kill(worker, signal.SIGCONT)


def test_next_transfer_after_a_broken_one_is_exact(server: tuple[str, int]) -> None:
    engine = make_engine(server[0], WeightPath.network, request_timeout_s=60.0)
    engine.start()
    assert engine.load_weights(weights_of(MODEL), 7) == []
    assert engine.verify_weights(hashes_of(MODEL)) == []
    engine.close()


def test_killed_server_ends_a_transfer(server: tuple[str, int]) -> None:
    url, session = server
    engine = make_engine(url, WeightPath.network, request_timeout_s=20.0)
    engine.start()

    def kill_after_some() -> Iterator[tuple[str, torch.Tensor]]:
        for number, weight in enumerate(weights_of(MODEL)):
            if number == 5:
                os.killpg(session, signal.SIGKILL)
                time.sleep(1.0)
            yield weight

    start = time.monotonic()
    with pytest.raises(EngineError, match=r"127.0.0.2:\d+: weights were not sent over the network") as error:
        engine.load_weights(kill_after_some(), 8)
    assert error.value.exit_code == 16
    assert time.monotonic() - start < 30
