"""Draws vLLM's tokens with the noise of a request, as the trained model's own sampler does; imports vllm.

A request without noise is left to vLLM's sampler. Filters and temperature are applied here: the request of a draft is
greedy for vLLM, and all tokens but the drawn one are excluded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import (  # pyright: ignore[reportMissingImports]
    BatchUpdate,
    LogitsProcessor,
)
from vllm.v1.sample.logits_processor.builtin import process_dict_updates  # pyright: ignore[reportMissingImports]

from ippo_cli.rollout.noise import PositionNoise
from ippo_cli.rollout.sampling import Sampling, sample_tokens
from ippo_cli.rollout.vllm.arguments import read_noise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A request in the batch."""

    sampling: Sampling
    key: int
    first_position: int  # of the first token of `output` in the response
    prompt: list[int]
    output: list[int]  # vLLM's own list, which grows

    @property
    def position(self) -> int:
        return self.first_position + len(self.output)


class NoiseProcessor(LogitsProcessor):
    """One for each worker, which holds the requests by their index in the batch."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, _read_row)

    def apply(self, logits: Tensor) -> Tensor:
        """Exclude all tokens but the drawn ones, in place; `logits [n, V]` float32."""
        by_sampling: dict[Sampling, list[int]] = {}
        for index, row in self._rows.items():
            by_sampling.setdefault(row.sampling, []).append(index)
        for sampling, indices in by_sampling.items():
            rows, places = [self._rows[index] for index in indices], torch.tensor(indices, device=logits.device)
            tokens = self._draw_tokens(logits[places], sampling, rows)
            logits[places] = -torch.inf
            logits[places, tokens] = 0.0
        return logits

    def _draw_tokens(self, logits: Tensor, sampling: Sampling, rows: list[_Row]) -> Tensor:
        device = logits.device
        keys, positions = [row.key for row in rows], [row.position for row in rows]
        noise = PositionNoise(torch.tensor(keys, device=device), torch.tensor(positions, device=device))
        seen = None
        if sampling.repetition_penalty != 1:
            seen = torch.zeros(logits.shape, dtype=torch.bool, device=device)
            for number, row in enumerate(rows):
                # With asynchronous scheduling the newest tokens are placeholders below 0.
                seen[number, [token for token in (*row.prompt, *row.output) if token >= 0]] = True
        # On a GPU the noise of few blocks is computed: where a token remains unknown, the draft is wrong there.
        return sample_tokens(
            logits,
            sampling,
            noise=noise,
            places=torch.arange(len(rows), device=device),
            seen=seen,
            banned=None,  # vLLM excludes stop tokens below the minimum length
            with_fixed_shapes=device.type != "cpu",
        ).tokens


def _read_row(params: Any, prompt: list[int] | None, output: list[int]) -> _Row | None:
    found = read_noise(params.extra_args)
    if found is None:
        return None
    noise, sampling = found
    return _Row(
        sampling=sampling, key=noise.key, first_position=noise.position, prompt=list(prompt or ()), output=output
    )
