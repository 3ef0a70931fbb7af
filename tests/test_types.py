"""Selecting, trimming and concatenating rows of rollouts, targets and minibatches."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace

import pytest
import torch
from torch import Tensor

from ippo_cli.types import DetachedTurn, Minibatch, Rollout, Targets, concatenate_rows, take_rows, trim_columns

B, R = 4, 5
MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
LENGTH = torch.tensor([3, 4, 0, 5])  # row 1 ends with an observation


def numbered(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers `10 * row + column`."""
    rows = torch.arange(shape[0], dtype=dtype).reshape(-1, *[1] * (len(shape) - 1)) * 10
    return rows + (torch.arange(shape[1], dtype=dtype) if len(shape) == 2 else 0)


def rollout(prompt_width: int = 3) -> Rollout:
    return Rollout(
        prompt_ids=numbered(B, prompt_width, dtype=torch.long),
        prompt_mask=torch.ones(B, prompt_width).bool(),
        response_ids=numbered(B, R, dtype=torch.long),
        response_mask=MASK,
        turn=torch.where(MASK, 0, -1),
        length=LENGTH,
        logprobs=numbered(B, R),
        behavior_logprobs=numbered(B, R) + 0.5,
        finished=torch.tensor([1, 0, 1, 0]).bool(),
        texts=[f"row {row}" for row in range(B)],
    )


def targets() -> Targets:
    return Targets(
        rewards=numbered(B, R),
        values=numbered(B, R) + 0.1,
        final_values=numbered(B),
        ref_logprobs=numbered(B, R) + 0.2,
        advantages=numbered(B, R) + 0.3,
        returns=numbered(B, R) + 0.4,
        loss_mask=MASK,
        value_mask=MASK,
        behavior_weights=numbered(B, R) + 0.5,
        sample_counts=torch.arange(B),
        positive=torch.arange(B) % 2 == 0,
    )


def test_detached_turns_default_to_empty_rows() -> None:
    assert rollout().detached == [[], [], [], []]
    turn = DetachedTurn(column=2, prompt=[5, 6])
    assert Rollout(**take_rows(replace(rollout(), detached=[[], [turn], [], []]), [1, 0])).detached == [[turn], []]


@pytest.mark.parametrize("rows", [[2, 0, 0], torch.tensor([2, 0, 0]), range(0, 4, 2), []])
def test_take_rows_moves_all_fields(rows: object) -> None:
    indices = rows.tolist() if isinstance(rows, Tensor) else list(rows)  # type: ignore[call-overload]
    whole = rollout()
    moved = Rollout(**take_rows(whole, rows))  # type: ignore[arg-type]
    for field in fields(Rollout):
        old, new = getattr(whole, field.name), getattr(moved, field.name)
        assert len(new) == len(indices)
        for place, row in enumerate(indices):
            assert new[place] == old[row] if isinstance(old, list) else torch.equal(new[place], old[row])


@pytest.mark.parametrize("prompt_width", [3, R, B])
def test_trim_columns_cuts_only_response_columns(prompt_width: int) -> None:
    cut = trim_columns(rollout(prompt_width), R, 4)
    assert cut.response_ids.shape == cut.logprobs.shape == cut.turn.shape == cut.response_mask.shape == (B, 4)
    assert cut.prompt_ids.shape == cut.prompt_mask.shape == (B, prompt_width)
    assert cut.finished.shape == (B,)
    assert torch.equal(cut.logprobs, rollout().logprobs[:, :4])
    short = trim_columns(targets(), R, 2)
    assert short.advantages.shape == short.loss_mask.shape == (B, 2)
    assert torch.equal(short.final_values, targets().final_values)


def minibatch() -> Minibatch:
    return Minibatch(
        rollout=rollout(),
        targets=targets(),
        num_tokens=99,
        num_sequences=7,
        num_values=5,
        num_value_sequences=3,
        agent=torch.arange(B),
    )


def test_select_rows_trims_columns_and_keeps_global_counts() -> None:
    whole = minibatch()
    part = whole.select_rows([1, 0])
    assert part.rollout.response_ids.shape == part.targets.returns.shape == (2, 4)
    assert part.rollout.texts == ["row 1", "row 0"]
    assert part.agent.tolist() == [1, 0]
    assert (part.num_tokens, part.num_sequences, part.num_values) == (99, 7, 5)
    assert torch.equal(part.targets.advantages, targets().advantages[[1, 0], :4])
    assert torch.equal(part.targets.final_values, targets().final_values[[1, 0]])


def test_empty_rows_keep_one_column() -> None:
    part = minibatch().select_rows([2])
    assert part.rollout.response_mask.tolist() == [[False]]


def test_mask_all_clears_only_loss_masks() -> None:
    whole = minibatch()
    ignored = whole.mask_all()
    assert not ignored.targets.loss_mask.any()
    assert not ignored.targets.value_mask.any()
    assert ignored.targets.loss_mask.shape == MASK.shape
    assert ignored.rollout is whole.rollout
    assert whole.targets.loss_mask.any(), "the original is unchanged"


def test_concatenating_one_rollout_returns_it() -> None:
    single = rollout()
    assert concatenate_rows([single]) is single


def test_concatenate_rows_pads_prompts_left_and_responses_right() -> None:
    turn = DetachedTurn(column=2, prompt=[5, 6])
    narrow = replace(trim_columns(rollout(2), R, 4), detached=[[], [turn], [], []])
    narrow = replace(narrow, behavior_logprobs=narrow.logprobs)
    wide = replace(rollout(3), behavior_logprobs=rollout().logprobs, texts=["a", "b", "c", "d"])
    wide = replace(wide, behavior_logprobs=wide.logprobs)
    both = concatenate_rows([narrow, wide])
    assert both.prompt_ids.shape == (2 * B, 3)
    assert not both.prompt_mask[:B, 0].any(), "prompts are padded on the left"
    assert torch.equal(both.prompt_ids[:B, 1:], narrow.prompt_ids)
    assert torch.equal(both.response_ids[:B, :4], narrow.response_ids)
    assert not both.response_mask[:B, 4].any()
    assert both.turn[:B, 4].tolist() == [-1] * B
    assert both.texts == [*narrow.texts, "a", "b", "c", "d"]
    assert both.detached == [*narrow.detached, *wide.detached]
    assert both.behavior_logprobs is both.logprobs, "fields that share a tensor still share it"
    for field in fields(Rollout):
        column = getattr(both, field.name)
        if isinstance(column, Tensor):
            assert torch.equal(column[B:], getattr(wide, field.name)), field.name
    joined = concatenate_rows([trim_columns(targets(), R, 4), targets()])
    assert torch.equal(joined.advantages[B:], targets().advantages)
    assert torch.equal(joined.final_values, torch.cat([targets().final_values] * 2))
    assert not joined.value_mask[:B, 4].any()


def test_rollout_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        rollout().texts = []  # type: ignore[misc]
    assert replace(rollout(), texts=["other"] * B).texts[0] == "other"
