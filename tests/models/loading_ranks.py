"""One rank of test_loading_ranks.py: `loading_ranks.py MODEL...`; prints results as JSON, which the test checks."""

from __future__ import annotations

import ctypes
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from rows import rollout
from torch import Tensor, nn

from ippo_cli.agents import build, references
from ippo_cli.agents.build_critic import build_critic
from ippo_cli.compose.load import build_config, compose_node, resolve_config
from ippo_cli.config.schema import Dtype
from ippo_cli.engine import distributed
from ippo_cli.models.actor import Policy, check_readable_tokens, load_causal_lm
from ippo_cli.models.layout import build_sequences
from ippo_cli.models.tiny import character_tokenizer

CPU = torch.device("cpu")
KEYS = (
    "task=arithmetic",
    "actor=full",
    "actor.dtype=fp32",
    "critic=separate",
    "critic.dtype=fp32",
    "algorithm.kl.reward.coef=0.1",
    "deepspeed=zero3",
)


class Memory:
    """Growth of this process's private memory within a block, without file pages, in bytes."""

    def __enter__(self) -> Memory:
        ctypes.CDLL(None).malloc_trim(0)  # free blocks would otherwise be reused unnoticed
        self._before = self.greatest = self._now()
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watcher.join()

    @property
    def growth(self) -> int:
        return self.greatest - self._before

    def _watch(self) -> None:
        while not self._over.is_set():
            self.greatest = max(self.greatest, self._now())
            time.sleep(0.001)

    def _now(self) -> int:
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
        return 1024 * int(line.split()[1])


def in_files(tensor: Tensor) -> bool:
    """Whether a tensor is memory-mapped from a file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= tensor.data_ptr() < last:
            return line.endswith(".safetensors")
    return False


def unmapped(module: nn.Module) -> list[str]:
    return [name for name, parameter in module.named_parameters() if not in_files(parameter)]


def asked(policy: Any, rows: list[int]) -> Tensor:
    """Log-probabilities of some responses, which differ in number and length between ranks."""
    made = rollout([[5, 6], [7], [8, 9]], [[1, 2, 3], [4], [5, 6]], [[1, 1, 1], [1], [1, 1]])
    sequences = build_sequences(made, torch.tensor(rows), packed=policy.packs, final=False)
    with torch.no_grad():
        return policy(sequences, temperature=0.7, chunk_tokens=2).logprobs


def is_close(actual: Tensor, expected: Tensor) -> bool:
    """Equal within 2e-6: some kernels depend on the alignment of the weights in memory."""
    return torch.allclose(actual, expected, rtol=0, atol=2e-6)


def results(model: str) -> dict[str, Any]:
    config = build_config(resolve_config(compose_node([*KEYS, f"actor.model={model}"])))
    name, agent = next(iter(config.task.agents.items()))
    whole = Policy(load_causal_lm(model, None, Dtype.fp32)).eval()
    own = [[0, 1, 2], [1]][distributed.rank()]
    expected = asked(whole, own)
    size = sum(parameter.numel() for parameter in whole.parameters())
    del whole
    frozen = references.FrozenWeights(CPU)
    policy = build.build_policy(config, name, agent, model, None, frozen)
    critic = build_critic(config, name, agent, model, None, frozen)
    found: dict[str, Any] = {"policy": unmapped(policy), "critic": unmapped(critic)}
    del policy, critic
    with Memory() as memory:
        reference, engine = references.load_reference_policy(config, name, agent.actor, model, frozen)
    assert engine is not None
    found["share"] = memory.growth / (4 * size)
    found["dtypes"] = sorted({str(parameter.dtype) for parameter in reference.parameters()})
    check_readable_tokens(character_tokenizer("a"), reference.lm, "actor.model=M")  # as for a frozen agent
    found["same"] = is_close(asked(reference, own), expected)
    for gather in ("all", "layer"):
        with Memory() as memory, engine.inference(gather=gather) as module:
            found[gather] = all([is_close(asked(module, own), expected) for _ in range(3)])
        found[f"{gather} growth"] = memory.growth / (4 * size)
    found["kept"] = sum(parameter.numel() for parameter in reference.parameters()) / size
    engine.destroy()
    return found


if __name__ == "__main__":
    ctypes.CDLL(None).mallopt(-3, 2**18)  # M_MMAP_THRESHOLD: freed memory is returned at once
    distributed.init(device="cpu", timeout_s=60)
    results(sys.argv[1])  # exclude one-time memory of a first forward and a first engine
    found = [results(model) for model in sys.argv[2:]]
    distributed.shutdown()
    print(json.dumps({Path(model).name: one for model, one in zip(sys.argv[2:], found, strict=True)}))
