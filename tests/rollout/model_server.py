"""An inference server with OpenAI's interface over a small model, for tests: `python model_server.py FOLDER` prints its
address and serves until it is killed. Tests import it by path.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fake_server import serve
from tiny_engine import build_model, build_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from ippo_cli.rollout.noise import UniformNoise, uniforms
from ippo_cli.rollout.sampling import Sampling, sample_tokens


class ModelServer:
    """The answers of a server, which samples each request alone; `prompts` are those that it has completed."""

    def __init__(self, folder: Path, *, name: str | None = None, fails_after: int | None = None) -> None:
        self.name = name or str(folder)
        self.prompts: list[list[int]] = []
        self._lm: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._lock, self._fails_after = threading.Lock(), fails_after
        self.delay_s = 0.0  # of each completion

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/models":
            length = self._lm.config.max_position_embeddings
            return 200, {"data": [{"id": self.name, "max_model_len": length}]}
        if path == "/tokenize":
            return 200, {"tokens": self._tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]}
        if path != "/v1/completions":
            return 404, {}
        time.sleep(self.delay_s)
        with self._lock:
            self.prompts.append(body["prompt"])
            if self._fails_after is not None and len(self.prompts) > self._fails_after:
                return 500, {"error": {"message": "the engine has died"}}
            ids, logprobs = self._complete(body)
        reason = "stop" if ids[-1] in body["stop_token_ids"] else "length"
        choice = {"token_ids": ids, "logprobs": {"token_logprobs": logprobs}, "finish_reason": reason}
        return 200, {"choices": [choice]}

    @torch.no_grad()
    def _complete(self, body: Any) -> tuple[list[int], list[float]]:
        sampling = Sampling(
            temperature=body["temperature"] or 1.0,
            top_p=body["top_p"],
            top_k=max(body["top_k"], 0),
            min_p=body["min_p"],
            repetition_penalty=body["repetition_penalty"],
            max_new_tokens=body["max_tokens"],
            min_new_tokens=body["min_tokens"],
            stop_strings=(),
            greedy=body["temperature"] == 0.0,
        )
        ids: list[int] = []
        logprobs: list[float] = []
        noise = UniformNoise(uniforms(body["seed"] % 2**31, "server", torch.tensor([0]), body["max_tokens"]))
        while len(ids) < body["max_tokens"] and not (ids and ids[-1] in body["stop_token_ids"]):
            logits = self._lm(input_ids=torch.tensor([[*body["prompt"], *ids]])).logits[:, -1]
            place = torch.tensor([len(ids)])
            chosen = sample_tokens(logits, sampling, noise=noise, places=place, seen=None, banned=None)
            ids.append(int(chosen.tokens))
            logprobs.append(float(chosen.behavior_logprobs))
        return ids, logprobs


def save_partner(folder: Path) -> Path:
    """Save a small model with a tokenizer of bytes."""
    tokenizer = build_tokenizer()
    build_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@contextmanager
def serve_model(folder: Path, **options: Any) -> Iterator[tuple[str, ModelServer]]:
    """Serve in threads; yields the address and the server."""
    server = ModelServer(folder, **options)
    with serve(server.answer) as url:
        yield url, server


if __name__ == "__main__":
    torch.set_num_threads(1)
    with serve_model(Path(sys.argv[1])) as (address, _):
        print(address, flush=True)
        time.sleep(float("inf") if len(sys.argv) < 3 else float(sys.argv[2]))
