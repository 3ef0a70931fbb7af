"""Converts padded prompts and responses to model inputs, in batches of a token budget."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ippo_cli.models.packing import Packing, Suffixes, pack
from ippo_cli.models.prefixes import MIN_SAVED_FRACTION, group_by_shared_prefix
from ippo_cli.models.sequence_parallel import TokenShard, sum_shards
from ippo_cli.types import Rollout, move_carrier


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Prompt and response of each row without the padding between them: packed, or right-padded to the longest.

    A row is one sequence, and each of its detached turns is another one. No real token follows padding, so causal
    attention needs no mask. ``state[:, t]`` is the index, among all tokens read, of the output that predicts response
    token ``t``: the last token *before* it. Only this class applies that shift.
    """

    input_ids: Tensor  # [s, L] int64; [1, N] when packed
    state: Tensor  # [b, R + 1] int64, into input_ids.flatten(): entry t is the state before token t, R that after all
    response_ids: Tensor  # [b, R] int64
    response_mask: Tensor  # [b, R] bool
    lengths: Tensor  # [b] int64: response columns in use
    packing: Packing | None
    # The action tokens of which this rank computes the preceding state:
    action_places: Tensor  # [n] int64, into response_ids.flatten()
    action_states: Tensor  # [n] int64: that state's index among the tokens that this rank reads

    @property
    def shard(self) -> TokenShard | None:
        """This rank's share of the tokens; None where it reads all of them."""
        return None if self.packing is None else self.packing.shard

    @property
    def action_ids(self) -> Tensor:
        """The action tokens of which this rank computes the preceding state, `[n]`."""
        return self.response_ids.flatten().index_select(0, self.action_places)

    def scatter_actions(self, values: Tensor) -> Tensor:
        """Values `[n]` of these action tokens at their places `[b, R]`, and the values of other ranks of the group; 0
        elsewhere. Collective over the group.
        """
        zeros = torch.zeros(self.response_ids.numel(), dtype=values.dtype, device=values.device)
        return self.join_shards(zeros.index_copy(0, self.action_places, values).view(self.response_ids.shape))

    def join_shards(self, values: Tensor) -> Tensor:
        """Values that are 0 where another rank of the group computes them, completed. Collective over the group."""
        return values if self.shard is None else sum_shards(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SequenceParts:
    """Sequences to encode: every row from its prompt on, then every detached turn from its own prompt."""

    row: Tensor  # [s] index of its row
    prompt_ids: Tensor  # [s, P] int64, left-padded
    prompt_mask: Tensor  # [s, P] bool
    begin: Tensor  # [s] the first response column
    end: Tensor  # [s] one past the last
    part_index: Tensor  # [b, R + 1] the part that contains the state before a column


def build_sequences(
    rollout: Rollout,
    rows: Tensor,
    *,
    packed: bool,
    share_prefixes: bool = False,
    final: bool = True,
    split: bool = False,
    device: torch.device | None = None,
) -> Sequences:
    """Build the model input of the given rows; `R` is trimmed to the columns they use.

    It is on the `device`, by default that of the rollout. From a rollout on the host it is built without waiting for a
    GPU.

    `share_prefixes`: whether shared prefixes of packed sequences are computed once. `final` requests the state after
    all `length` columns. Without it the last action token and later columns are not read, since only later states need
    them. `split`: whether each rank of a model-parallel group, all of which build the same packed row, reads its share.
    """
    lengths = rollout.length[rows]
    ends = lengths.tolist()
    width = max(1, *ends)
    response_ids, response_mask = rollout.response_ids[rows, :width], rollout.response_mask[rows, :width]
    parts = _split_sequences(rollout, rows, ends, width, final=final)
    columns = torch.arange(width + 1, device=rows.device)
    inside = (columns[:-1] >= parts.begin[:, None]) & (columns[:-1] < parts.end[:, None])
    end = (columns[1:] * (response_mask[parts.row] & inside)).amax(dim=1) - 1  # its last action token
    if final:
        last = parts.part_index[:, -1]
        end = end.index_copy(0, last, parts.end[last])
    real = torch.cat([parts.prompt_mask, inside & (columns[:-1] < end[:, None])], dim=1)
    ids = torch.cat([parts.prompt_ids, response_ids[parts.row]], dim=1)
    counts = real.sum(dim=1)
    device = ids.device if device is None else device
    if packed:
        input_ids, places, packing = _pack_sequences(ids, real, share_prefixes, device)
        packing = packing.split_over_group() if split else packing
    else:
        input_ids, places, packing = _pad_sequences(ids, real, counts)
    offset = parts.prompt_mask.sum(dim=1) - 1 - parts.begin  # index of the state before column 0 within the part
    state = places[parts.part_index, torch.minimum(offset[parts.part_index] + columns, counts[parts.part_index] - 1)]
    action_places, action_states = _find_actions(response_mask, state[:, :-1], packing)
    sequences = Sequences(
        input_ids=input_ids,
        state=state,
        response_ids=response_ids,
        response_mask=response_mask,
        lengths=lengths,
        packing=packing,
        action_places=action_places,
        action_states=action_states,
    )
    return move_carrier(sequences, device)


def _find_actions(mask: Tensor, state: Tensor, packing: Packing | None) -> tuple[Tensor, Tensor]:
    """The places of action tokens `[n]` in the flattened `mask` `[b, R]`, and the states before them among the tokens
    that this rank reads; only tokens of its shard.
    """
    shard = None if packing is None else packing.shard
    own = mask if shard is None else mask & shard.holds(state)
    places = own.flatten().nonzero().squeeze(1)
    return places, state.flatten()[places] - (0 if shard is None else shard.start)


def _split_sequences(rollout: Rollout, rows: Tensor, lengths: list[int], width: int, *, final: bool) -> _SequenceParts:
    count, device = len(rows), rows.device
    prompt_ids, prompt_mask, ends = rollout.prompt_ids[rows], rollout.prompt_mask[rows], list(lengths)
    row, begin, prompts = list(range(count)), [0] * count, []
    of = torch.arange(count)[:, None].repeat(1, width + 1)
    for place, number in enumerate(rows.tolist()):
        before, length = place, lengths[place]
        for turn in rollout.detached[number]:
            if turn.column == length and not final:
                continue  # the prompt of a next turn without action tokens
            part = len(row)
            row.append(place)
            begin.append(turn.column)
            ends[before] = turn.column
            ends.append(length)
            prompts.append(turn.prompt)
            of[place, turn.column :] = part
            before = part
    if prompts:
        prompt_width = max(prompt_ids.shape[1], *map(len, prompts))
        own_ids = torch.tensor([[0] * (prompt_width - len(prompt)) + prompt for prompt in prompts], device=device)
        own_mask = (
            torch.arange(prompt_width) >= torch.tensor([prompt_width - len(prompt) for prompt in prompts])[:, None]
        )
        padding = (prompt_width - prompt_ids.shape[1], 0)
        prompt_ids = torch.cat([torch.nn.functional.pad(prompt_ids, padding), own_ids])
        prompt_mask = torch.cat([torch.nn.functional.pad(prompt_mask, padding), own_mask.to(device)])
    return _SequenceParts(
        row=torch.tensor(row, device=device),
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        begin=torch.tensor(begin, device=device),
        end=torch.tensor(ends, device=device),
        part_index=of.to(device),
    )


def row_token_counts(rollout: Rollout, *, packed: bool) -> Tensor:
    """Tokens of each row, `[B]`, of all its sequences: the lengths for `token_budget_batches`.

    If rows are padded and some have several sequences, every sequence counts as long as the longest of all rows.
    """
    tokens = rollout.prompt_mask.sum(dim=1) + rollout.length
    if not any(rollout.detached):
        return tokens
    sizes: list[list[int]] = []
    prompts, lengths = rollout.prompt_mask.sum(dim=1).tolist(), rollout.length.tolist()
    for prompt, length, turns in zip(prompts, lengths, rollout.detached, strict=True):
        read = [prompt, *(len(turn.prompt) for turn in turns)]
        bounds = [0, *(turn.column for turn in turns), length]
        sizes.append([size + bounds[n + 1] - bounds[n] for n, size in enumerate(read)])
    longest = max(max(own) for own in sizes)
    return tokens.new_tensor([sum(own) if packed else len(own) * longest for own in sizes])


def _pack_sequences(
    ids: Tensor, real: Tensor, share_prefixes: bool, target: torch.device
) -> tuple[Tensor, Tensor, Packing]:
    """Tokens `[1, N]`, longest first, the index of every token of each sequence `[s, L]`, and the packing for a model
    on the `target`.

    Shared prefixes are sorted among the sequences without a shared prefix; their suffixes follow after all of these.
    """
    sequences = [row[own] for row, own in zip(ids.cpu().numpy(), real.cpu().numpy(), strict=True)]
    counts = [len(sequence) for sequence in sequences]
    least_share = MIN_SAVED_FRACTION.get(target.type, MIN_SAVED_FRACTION["cuda"])
    shared = group_by_shared_prefix(sequences, least_share) if share_prefixes else ()
    alone = set(range(len(counts))).difference(*(family.members for family in shared))
    whole = [((number,), counts[number]) for number in sorted(alone)]
    whole += [(family.members, family.prefix) for family in shared]
    whole.sort(key=lambda entry: -entry[1])
    tokens: list[np.ndarray] = []
    places = np.zeros((len(counts), max(counts)), dtype=np.int64)
    row = 0

    def put(members: Sequence[int], begin: int, end: int) -> None:
        nonlocal row
        tokens.append(sequences[members[0]][begin:end])
        places[list(members), begin:end] = np.arange(row, row + end - begin)
        row += end - begin

    for members, size in whole:
        put(members, 0, size)
    suffixes: list[Suffixes] = []
    for place, (members, prefix) in enumerate(whole):
        if len(members) == 1:
            continue
        longest_first = sorted(members, key=lambda number: -counts[number])
        suffixes.append(Suffixes(place, [counts[number] - prefix for number in longest_first]))
        for number in longest_first:
            put((number,), prefix, counts[number])
    row_ids = torch.from_numpy(np.concatenate(tokens))[None].to(ids.device)
    packing = pack([size for _, size in whole], ids.device, suffixes)
    return row_ids, torch.from_numpy(places).to(ids.device), packing


def _pad_sequences(ids: Tensor, real: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, None]:
    """Tokens `[b, L]`, zero-padded on the right, and the index of every token of each row."""
    order = torch.sort(~real, dim=1, stable=True).indices
    total = int(counts.max())
    places = torch.arange(len(ids) * total, device=ids.device).view(-1, total)
    return (ids * real).gather(1, order)[:, :total], places, None


def token_budget_batches(
    lengths: Tensor, budget: int, *, packed: bool, group_keys: Sequence[Hashable] | None = None
) -> list[Tensor]:
    """Split rows into batches of similar length, longest first, within `budget` tokens; returns row numbers.

    Padded rows count as long as their batch's longest. A single row longer than the budget is a separate batch. Packed
    rows with equal `group_keys` are adjacent, at the position of their longest.
    """
    order = torch.sort(lengths, descending=True, stable=True).indices.tolist()
    sizes = lengths.tolist()
    if group_keys is not None:
        first = {key: place for place, key in reversed([*enumerate(group_keys[row] for row in order)])}
        order.sort(key=lambda row: first[group_keys[row]])
    batches: list[list[int]] = []
    room = 0
    for row in order:
        # Longest first: the first row of a batch sets its width.
        cost = sizes[row] if packed or not batches else sizes[batches[-1][0]]
        if batches and cost <= room:
            batches[-1].append(row)
            room -= cost
        else:
            batches.append([row])
            room = budget - sizes[row]
    return [torch.tensor(batch, dtype=torch.long, device=lengths.device) for batch in batches]
