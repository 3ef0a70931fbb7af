"""Model families read packed rows as padded ones, or refuse them."""

from __future__ import annotations

import pytest
import torch
from architectures import FAMILIES, STATEFUL, tiny_model
from rows import everything, rollout

from ippo_cli.models import attention_groups, prefixes
from ippo_cli.models.actor import Policy
from ippo_cli.models.layout import build_sequences
from ippo_cli.models.packing import enable_packing

CARRY_STATE = ("mamba", "jamba", *STATEFUL)
PADDED = (*CARRY_STATE, "falcon")  # Falcon computes attention itself


@pytest.mark.parametrize("family", [*FAMILIES, *STATEFUL])
@torch.no_grad()
def test_packed_rows_have_log_probabilities_of_padded_rows(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "MIN_PREFIX_TOKENS", 1)
    monkeypatch.setitem(attention_groups.PADDING_BUDGET, "cpu", 4)  # rows attend as several groups
    lm = tiny_model(family, initializer_range=0.3)  # farther from the uniform distribution
    policy = Policy(lm).eval()
    assert enable_packing(lm.base_model) == (family not in PADDED)
    if family in PADDED:
        return
    made = rollout(
        [[5, 6, 7], [8], [5, 6, 7, 9], list(range(2, 50))],
        [[10, 11, 12, 13, 14], [15, 16], [17, 18, 19, 20], [21]],
        [[1] * 5, [1] * 2, [1] * 4, [1]],
    )
    padded, packed, shared = (
        policy(
            build_sequences(made, everything(made), packed=packs, share_prefixes=shares),
            temperature=1.0,
            chunk_tokens=100,
        ).logprobs
        for packs, shares in ((False, False), (True, False), (True, True))
    )
    assert padded.std() > 0.1
    torch.testing.assert_close(packed, padded, atol=1e-5, rtol=0)
    torch.testing.assert_close(shared, padded, atol=1e-5, rtol=0)
