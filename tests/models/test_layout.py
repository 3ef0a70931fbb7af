"""Model inputs of rows, and the shift between states and tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import everything, rollout
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from ippo_cli.models import prefixes
from ippo_cli.models.actor import Policy
from ippo_cli.models.critic import ValueHead, ValueHeadConfig
from ippo_cli.models.layout import build_sequences, row_token_counts, token_budget_batches
from ippo_cli.models.packing import enable_packing
from ippo_cli.types import DetachedTurn


def test_states_by_hand() -> None:
    made = rollout([[5, 6], [4, 5, 6]], [[7, 8, 2], [9, 2]], [[1, 1, 1], [1, 1]])
    sequences = build_sequences(made, everything(made), packed=False)
    assert sequences.input_ids.tolist() == [[5, 6, 7, 8, 2], [4, 5, 6, 9, 2]]
    # V(5 6) predicts 7, V(5 6 7) 8, V(5 6 7 8) 2, and V(5 6 7 8 2) the next token.
    assert sequences.state[0].tolist() == [1, 2, 3, 4]
    assert sequences.state[1].tolist() == [5 + 2, 5 + 3, 5 + 4, 5 + 4]  # past the end of a short row: valid, never used
    assert sequences.lengths.tolist() == [3, 2]
    assert sequences.response_ids.tolist() == [[7, 8, 2], [9, 2, 0]]
    assert sequences.response_mask.tolist() == [[True] * 3, [True, True, False]]


def test_state_ends_with_previous_token() -> None:
    made = rollout([[5, 6], [4]], [[7, 8, 2], [9, 2]], [[1, 1, 1], [1, 1]])
    sequences = build_sequences(made, everything(made), packed=False)
    read = sequences.input_ids.flatten()[sequences.state]
    assert read[0].tolist() == [6, 7, 8, 2]
    assert read[1, :3].tolist() == [4, 9, 2]
    after = read.gather(1, sequences.lengths[:, None])[:, 0]
    assert after.tolist() == [2, 2], "the state after the last token includes that token"


def test_observations_read_without_loss() -> None:
    made = rollout([[5]], [[7, 11, 12, 8]], [[1, 0, 0, 1]])
    sequences = build_sequences(made, everything(made), packed=False)
    assert sequences.input_ids.tolist() == [[5, 7, 11, 12, 8]]
    assert sequences.response_mask.tolist() == [[True, False, False, True]]
    assert sequences.input_ids.flatten()[sequences.state][0, :4].tolist() == [5, 7, 11, 12]


@pytest.mark.parametrize("packed", [False, True])
def test_final_observation_read_only_for_final_state(packed: bool) -> None:
    made = rollout([[5, 6]], [[7, 8, 9, 4]], [[1, 1, 0, 0]])
    whole = build_sequences(made, everything(made), packed=packed)
    assert whole.input_ids.tolist() == [[5, 6, 7, 8, 9, 4]]
    assert whole.state[0, 4] == 5
    assert whole.lengths.tolist() == [4]
    short = build_sequences(made, everything(made), packed=packed, final=False)
    assert short.input_ids.tolist() == [[5, 6, 7]]
    assert short.state[0, :2].tolist() == whole.state[0, :2].tolist() == [1, 2]
    assert short.response_ids.tolist() == whole.response_ids.tolist() == [[7, 8, 9, 4]], "one width in both"


def test_unused_columns_trimmed() -> None:
    made = replace(rollout([[5, 6]], [[7, 8, 9]], [[1, 1, 0]]), length=torch.tensor([2]))
    sequences = build_sequences(made, everything(made), packed=False)
    assert sequences.input_ids.tolist() == [[5, 6, 7, 8]]
    assert sequences.response_ids.tolist() == [[7, 8]]


def test_detached_turn_is_separate_sequence() -> None:
    detached = [[DetachedTurn(column=2, prompt=[4, 4, 4])], []]
    made = rollout([[5, 6], [3]], [[7, 2, 8, 9], [1, 2]], [[1, 1, 1, 1], [1, 1]], detached=detached)
    sequences = build_sequences(made, everything(made), packed=False)
    assert sequences.input_ids.tolist() == [[5, 6, 7, 0, 0], [3, 1, 2, 0, 0], [4, 4, 4, 8, 9]]
    assert sequences.state[0].tolist() == [1, 2, 12, 13, 14]
    assert sequences.state[1, :3].tolist() == [5, 6, 7]
    short = build_sequences(made, everything(made), packed=True, final=False)
    assert short.input_ids.tolist() == [[4, 4, 4, 8, 5, 6, 7, 3, 1]]
    assert short.state[0, :4].tolist() == [5, 6, 2, 3]


def test_detached_final_prompt_read_only_for_final_state() -> None:
    made = rollout([[5]], [[7, 2]], [[1, 1]], detached=[[DetachedTurn(column=2, prompt=[4, 6])]])
    sequences = build_sequences(made, everything(made), packed=False)
    assert sequences.input_ids.tolist() == [[5, 7], [4, 6]]
    assert sequences.state.tolist() == [[0, 1, 3]]
    assert build_sequences(made, everything(made), packed=False, final=False).input_ids.tolist() == [[5, 7]]


def test_detached_tokens_counted() -> None:
    turns = [DetachedTurn(column=2, prompt=[4] * 9), DetachedTurn(column=3, prompt=[4])]
    made = rollout([[5, 6], [3]], [[7, 2, 8, 9], [1, 2]], [[1, 1, 1, 1], [1, 1]], detached=[turns, []])
    assert row_token_counts(made, packed=True).tolist() == [2 + 2 + 9 + 1 + 1 + 1, 3]
    assert row_token_counts(made, packed=False).tolist() == [3 * 10, 10]
    assert build_sequences(made, everything(made), packed=False).input_ids.shape[1] <= 10
    plain = replace(made, detached=[[], []])
    assert row_token_counts(plain, packed=True).tolist() == row_token_counts(plain, packed=False).tolist() == [6, 3]


ROWS = [  # prompt, response, mask, detached turns
    ([5, 6, 7], [8, 9, 10, 11, 12], [1, 1, 0, 0, 1], []),
    ([5], [6, 7, 8, 9, 10, 11, 12, 13], [1, 0, 1, 1, 0, 1, 0, 0], []),
    ([5, 6, 7], [8, 9, 10, 11, 30], [0, 1, 0, 0, 1], []),
    ([14, 15], [], [], []),
    ([16, 17], [18, 19], [0, 0], []),  # an observation without a response
    ([20, 21, 22, 23], [24], [1], []),
    ([3, 4], [5, 6, 7, 8, 9, 10], [1, 1, 1, 1, 1, 1], [(2, [30, 31, 32, 33, 34, 35, 36]), (5, [37])]),
    ([8, 9], [10, 11, 12, 13, 14], [1, 0, 1, 1, 0], [(2, [25, 26, 27])]),
    ([8, 9], [10, 11], [1, 1], [(2, [28, 29])]),  # the last prompt came after the last response
]


def a_policy() -> Policy:
    torch.manual_seed(0)
    shape = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    lm = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=4, bos_token_id=None, eos_token_id=None)).eval()
    policy = Policy(lm, ValueHead(ValueHeadConfig(32)))
    assert policy.value_head is not None
    torch.nn.init.normal_(policy.value_head.out.weight)
    assert enable_packing(lm.base_model)
    return policy


def read_alone(policy: Policy, before: list[int], token: int | None) -> tuple[Tensor, Tensor]:
    """The log-probability of a token after others, and the value of that state, by the model's own forward."""
    assert policy.value_head is not None
    ids = torch.tensor([before])
    logprobs = policy.lm(input_ids=ids).logits[0, -1].float().log_softmax(-1)
    hidden = policy.lm.base_model(input_ids=ids).last_hidden_state[0, -1]
    return logprobs[0 if token is None else token], policy.value_head(hidden)


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("way", ["padded", "packed", "shared"])
@pytest.mark.parametrize("rows", [ROWS[:6], ROWS], ids=["holes", "detached"])
def test_rows_match_separate_forwards(rows: list[Any], way: str, final: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "MIN_PREFIX_TOKENS", 1)
    policy = a_policy()
    prompts, responses, masks, turns = (list(part) for part in zip(*rows, strict=True))
    detached = [[DetachedTurn(column=column, prompt=prompt) for column, prompt in own] for own in turns]
    made = rollout(prompts, responses, masks, pad=39, detached=detached)
    packed, shared = way != "padded", way == "shared"
    sequences = build_sequences(made, everything(made), packed=packed, share_prefixes=shared, final=final)
    if shared:
        assert sequences.input_ids.numel() < build_sequences(made, everything(made), packed=True).input_ids.numel()
    output = policy(sequences, temperature=1.0, chunk_tokens=100)
    assert torch.equal(sequences.response_mask, made.response_mask)
    logprobs, values = torch.zeros(made.response_mask.shape), torch.zeros(made.response_mask.shape)
    finals = torch.zeros(len(rows))
    for row, (prompt, response, mask, own) in enumerate(rows):
        for column in range(len(response) + 1):
            start, context = next(((at, ids) for at, ids in reversed(own) if at <= column), (0, prompt))
            before = context + response[start:column]
            if column == len(response):
                _, finals[row] = read_alone(policy, before, None)
            elif mask[column]:
                logprobs[row, column], values[row, column] = read_alone(policy, before, response[column])
    torch.testing.assert_close(output.logprobs, logprobs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.values, values, atol=1e-5, rtol=1e-5)
    if final:
        torch.testing.assert_close(output.final_values, finals, atol=1e-5, rtol=1e-5)
    weights = torch.randn(logprobs.shape)
    gradients = []
    for found in (output.logprobs * weights + output.values, logprobs * weights + values):
        policy.zero_grad()
        found.sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
    torch.testing.assert_close(*gradients, atol=1e-5 * float(gradients[1].abs().max()), rtol=1e-4)


def test_row_without_response_keeps_prompt() -> None:
    made = rollout([[5, 6]], [[]], [[]])
    sequences = build_sequences(made, everything(made), packed=False)
    assert sequences.input_ids.tolist() == [[5, 6]]
    assert sequences.lengths.tolist() == [0]
    assert sequences.state[0, 0] == 1


def test_row_selection() -> None:
    made = rollout([[5, 6], [4], [1, 2, 3]], [[7, 8, 2], [9], [3, 3, 3, 3]], [[1, 1, 1], [1], [1, 1, 1, 1]])
    sequences = build_sequences(made, torch.tensor([1, 0, 1]), packed=False)
    assert sequences.input_ids.tolist() == [[4, 9, 0, 0, 0], [5, 6, 7, 8, 2], [4, 9, 0, 0, 0]]
    assert sequences.response_ids.shape == (3, 3)


tokens = st.lists(st.integers(3, 60), max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(3, 60), min_size=1, max_size=5), tokens), min_size=1, max_size=5))
def test_padding_ids_ignored(rows: list[tuple[list[int], list[int]]]) -> None:
    prompts, responses = [list(part) for part in zip(*rows, strict=True)]
    masks = [[1] * len(response) for response in responses]
    made = [rollout(prompts, responses, masks, pad=pad) for pad in (0, 7, -100)]
    found = [build_sequences(one, everything(one), packed=False) for one in made]
    for other in found[1:]:
        assert torch.equal(found[0].input_ids, other.input_ids)
        assert torch.equal(found[0].state, other.state)
    width = found[0].input_ids.shape[1]
    for row, (prompt, response) in enumerate(rows):
        whole = prompt + response
        assert found[0].input_ids[row, : len(whole)].tolist() == whole
        assert not found[0].input_ids[row, len(whole) :].any()
        assert found[0].state[row, : len(response) + 1].tolist() == list(
            range(row * width + len(prompt) - 1, row * width + len(whole))
        )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 200))
def test_batches_within_budget(lengths: list[int], budget: int) -> None:
    batches = token_budget_batches(torch.tensor(lengths), budget, packed=False)
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(len(lengths)))
    for batch in batches:
        sizes = [lengths[row] for row in batch.tolist()]
        assert len(sizes) == 1 or max(sizes) * len(sizes) <= budget
    assert all(batch.dtype == torch.long for batch in batches)


def test_batches_filled() -> None:
    lengths = torch.tensor([2, 9, 2, 8, 2])
    assert [batch.tolist() for batch in token_budget_batches(lengths, 18, packed=False)] == [[1, 3], [0, 2, 4]]
    assert [batch.tolist() for batch in token_budget_batches(lengths, 19, packed=True)] == [[1, 3, 0], [2, 4]]
    assert len(token_budget_batches(torch.tensor([5] * 8), 20, packed=False)) == 2
    assert len(token_budget_batches(torch.tensor([30, 1]), 20, packed=False)) == 2, (
        "a row above the budget is a separate batch"
    )


def test_grouped_rows_adjacent() -> None:
    lengths, prompts = torch.tensor([2, 9, 7, 8, 5]), ["a", "b", "c", "a", "b"]
    batches = token_budget_batches(lengths, 14, packed=True, group_keys=prompts)
    assert [batch.tolist() for batch in batches] == [[1, 4], [3, 0], [2]]
    alone = token_budget_batches(lengths, 14, packed=True, group_keys=range(5))
    assert [batch.tolist() for batch in alone] == [
        batch.tolist() for batch in token_budget_batches(lengths, 14, packed=True)
    ]


def test_shared_prefix_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "MIN_PREFIX_TOKENS", 2)
    made = rollout([[5, 6], [4], [5, 6]], [[7, 2], [9, 8, 2], [7, 3, 2]], [[1, 1], [1, 1, 1], [1, 1, 1]])
    sequences = build_sequences(made, everything(made), packed=True, share_prefixes=True)
    assert sequences.input_ids.tolist() == [[4, 9, 8, 2, 5, 6, 7, 3, 2, 2]]
    assert sequences.packing is not None
    assert sequences.packing.positions.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 3]]
    # Predictions after the prompt [5, 6] have one index for both rows, and those after their 7 as well.
    assert sequences.state.tolist() == [[5, 6, 9, 9], [0, 1, 2, 3], [5, 6, 7, 8]]


def test_no_empty_batch() -> None:
    assert token_budget_batches(torch.zeros(0, dtype=torch.long), 10, packed=False) == []


@pytest.mark.parametrize("budget", [1, 7, 1000])
def test_batches_deterministic(budget: int) -> None:
    lengths = torch.tensor([3, 1, 3, 2, 3])
    first, again = (
        token_budget_batches(lengths, budget, packed=False),
        token_budget_batches(lengths, budget, packed=False),
    )
    assert [batch.tolist() for batch in first] == [batch.tolist() for batch in again]
