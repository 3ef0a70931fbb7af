"""Random responses for comparisons of formulas, and the type of a comparison."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

# Largest accepted |ours - theirs| / max(1, |theirs|) in float32 and float64; None: not compared.
Tolerance = tuple[float, float | None]
EXACT: Tolerance = (1e-5, 1e-12)
# For peers that add 1e-8 to a count, clamp a variance, or have ratios below e^-20; ours do not.
EPSILON: Tolerance = (1e-5, 1e-7)
SINGLE: Tolerance = (1e-5, None)  # for formulas, theirs or ours, that always compute in float32

VOCABULARY = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Properties of the responses of a case."""

    holes: bool = True  # observations between turns; otherwise every response is one turn
    empty_rows: bool = False
    far: bool = False  # log-ratios beyond every clamp; otherwise about 0.4
    equal_scores: bool = False  # within each group
    lone: bool = False  # one row is a group of one
    own_tokens: int | None = None  # number of action tokens of the whole batch


KINDS = {
    "holes": Kind(),
    "plain": Kind(holes=False),
    "empty rows": Kind(empty_rows=True),
    "far": Kind(far=True),
    "equal scores": Kind(equal_scores=True),
    "lone row": Kind(lone=True),
    "one token": Kind(holes=False, own_tokens=1),
    "no token": Kind(holes=False, own_tokens=0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One batch of B rows, with noise also outside the mask: a formula that uses it gives a wrong result."""

    mask: Tensor  # [B, R] bool: action tokens
    turn: Tensor  # [B, R] int64: 0, 1, 2 .. without gaps, -1 outside the mask
    group: Tensor  # [B] int64: labels in any order; groups of unequal sizes
    block: int  # rows // block groups of consecutive rows
    logits: Tensor  # [B, R, VOCABULARY]
    ids: Tensor  # [B, R] int64
    new: Tensor  # [B, R] log-probabilities, as are the next three
    old: Tensor
    ref: Tensor
    sampler: Tensor
    advantages: Tensor  # [B, R]
    row_advantages: Tensor  # [B]
    rewards: Tensor  # [B, R]
    values: Tensor  # [B, R]
    new_values: Tensor  # [B, R]
    returns: Tensor  # [B, R]
    score: Tensor  # [B]
    greedy: Tensor  # [B]
    turn_scores: Tensor  # [B, K]
    gamma: float
    gae_lambda: float
    low: float  # clip ranges
    high: float
    dual: float
    value_clip: float
    coef: float
    cap: float

    @property
    def m(self) -> Tensor:
        """The mask as floating-point numbers."""
        return self.mask.to(self.new.dtype)

    @property
    def num_tokens(self) -> int:
        return int(self.mask.sum())

    @property
    def num_sequences(self) -> int:
        return int(self.mask.any(dim=1).sum())

    @property
    def blocks(self) -> Tensor:
        """Labels of the consecutive groups, `[B]`."""
        return torch.arange(len(self.score)) // self.block

    def kept(self, x: Tensor) -> Tensor:
        """Return `x` with 0 outside the mask."""
        return torch.where(self.mask, x, 0.0)

    def on_tokens(self, rows: Tensor) -> Tensor:
        """Place one number per row on each of its action tokens."""
        return rows[:, None] * self.m

    def to(self, dtype: torch.dtype) -> Case:
        real = {
            one.name: value
            for one in fields(self)
            if isinstance(value := getattr(self, one.name), Tensor) and value.is_floating_point()
        }
        return replace(self, **{name: value.to(dtype) for name, value in real.items()})


def make_case(seed: int, kind: str) -> Case:
    """Return the float64 batch of a seed."""
    like = KINDS[kind]
    generator = torch.Generator().manual_seed(seed)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    def real(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))

    block = integer(2, 4)
    rows, width = block * integer(2, 3), integer(3, 20)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*(shape or (rows, width)), generator=generator, dtype=torch.float64)

    mask = _mask(rows, width, like, generator)
    turn = _turns(mask)
    group = _groups(rows, generator)
    # Multiples of 1/16: groups with nearly equal scores have a std of rounding errors; `equal_scores` covers them.
    score = (16 * noise(rows)).round() / 16
    if like.lone:
        group[integer(0, rows - 1)] = -1
    if like.equal_scores:
        values = 5 * torch.rand(int(group.max()) + 1, generator=generator, dtype=torch.float64)
        score = values[group]
    old = -noise().abs() * 1.5
    apart = 15.0 if like.far else 0.4
    return Case(
        mask=mask,
        turn=turn,
        group=group,
        block=block,
        logits=2 * noise(rows, width, VOCABULARY),
        ids=torch.randint(0, VOCABULARY, (rows, width), generator=generator),
        old=old,
        new=old + apart * noise(),
        ref=old + apart * noise(),
        sampler=old + apart * noise(),
        advantages=noise(),
        row_advantages=noise(rows),
        rewards=noise(),
        values=noise(),
        new_values=noise(),
        returns=noise(),
        score=score,
        greedy=noise(rows),
        turn_scores=noise(rows, int(turn.max()) + 2),
        gamma=(1.0, 0.99, 0.9)[integer(0, 2)],
        gae_lambda=(1.0, 0.95, 0.5)[integer(0, 2)],
        low=real(0.1, 0.3),
        high=real(0.1, 0.4),
        dual=real(1.5, 4.0),
        value_clip=real(0.1, 0.8),
        coef=real(0.01, 0.5),
        cap=real(1.1, 3.0),
    )


def _mask(rows: int, width: int, like: Kind, generator: torch.Generator) -> Tensor:
    """Return a ragged mask; the last row is the longest, and non-empty rows have at least one token."""
    lengths = torch.randint(1, width + 1, (rows, 1), generator=generator)
    lengths[-1] = width
    mask = torch.arange(width) < lengths
    if like.holes:
        mask &= torch.rand(rows, width, generator=generator) < 0.7
        mask[:, 0] |= ~mask.any(dim=1)
    if like.empty_rows:
        mask[1 : 1 + rows // 3] = False
    if like.own_tokens is not None:
        mask &= torch.arange(rows * width).view(rows, width) < like.own_tokens
    return mask


def _turns(mask: Tensor) -> Tensor:
    """Number the contiguous spans of action tokens as turns."""
    starts = mask.clone()
    starts[:, 1:] &= ~mask[:, :-1]
    return torch.where(mask, starts.cumsum(1) - 1, -1)


def _groups(rows: int, generator: torch.Generator) -> Tensor:
    """Return labels of groups of two to five rows, in random order."""
    labels, size = [0, 0], 2
    while len(labels) < rows:
        room = rows - len(labels) >= 2
        new = room and (size == 5 or bool(torch.rand((), generator=generator) < 0.4))
        labels += [labels[-1] + 1] * 2 if new else [labels[-1]]
        size = 2 if new else size + 1
    return torch.tensor(labels)[torch.randperm(rows, generator=generator)]


Result = Tensor | tuple[Tensor, ...]
Side = Callable[[Case], Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One quantity, computed by our formulas and by a peer.

    A known difference has a reason (`known`) and optionally `translated`: our side, changed according to the reason.
    It must agree with the peer; otherwise the reason is incomplete.
    """

    what: str
    ours: Side
    theirs: Side
    on: tuple[str, ...] = ("holes",)  # kinds of cases
    tolerance: Tolerance = EXACT
    known: str | None = None
    translated: Side | None = None

    @property
    def limits(self) -> dict[torch.dtype, float]:
        """The largest accepted difference, by dtype."""
        single, double = self.tolerance
        return {torch.float32: single} | ({} if double is None else {torch.float64: double})


def joined(*sides: Side) -> Side:
    """Concatenate the results of several sides."""

    def results(c: Case) -> tuple[Tensor, ...]:
        found = (side(c) for side in sides)
        return tuple(itertools.chain.from_iterable(one if isinstance(one, tuple) else (one,) for one in found))

    return results


def graded(function: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Tensor]:
    """Return `function(at)` and the gradient of its sum."""
    at = at.detach().requires_grad_()
    value = function(at)
    (gradient,) = torch.autograd.grad(value.sum(), at)
    return value.detach(), gradient
