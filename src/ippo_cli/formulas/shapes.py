"""Shape types of inputs and outputs: B sequences, R response tokens, K turns, S steps, H hidden width, V vocabulary.

N is the number of players. A letter is one size within a call: `Tokens` and `Rows` have equally many rows. Training
does not check shapes; the tests import the formulas with a type checker.
"""

from __future__ import annotations

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

Real = Float[Tensor, "*shape"]  # any shape, the same for all arguments of a call
Kept = Shaped[Tensor, "*#shape"]  # a mask over it, bool or 0 and 1 of any dtype
Scalar = Float[Tensor, ""]
Tokens = Float[Tensor, "B R"]
Mask = Shaped[Tensor, "B R"]  # bool, or 0 and 1 of any dtype
TokenMask = Bool[Tensor, "B R"]
TurnNumbers = Int[Tensor, "B R"]
Turns = Float[Tensor, "B K"]
TurnMask = Bool[Tensor, "B K"]
Alternatives = Float[Tensor, "B K M"]  # M alternatives to a turn
AlternativeMask = Bool[Tensor, "B K M"]
Steps = Float[Tensor, "B S"]
Rows = Float[Tensor, "B"]
Games = Float[Tensor, "N N"]
Players = Float[Tensor, "N"]
Coalitions = Float[Tensor, "C B"]
Members = Float[Tensor, "M B"]
Labels = Int[Tensor, "B"]
Binned = Float[Tensor, "*shape K"]  # K bins of a value
Hidden = Float[Tensor, "*shape H"]
Routers = Float[Tensor, "_ E"]
ReferenceHidden = Float[Tensor, "*shape H2"]
Ids = Int[Tensor, "*shape"]
