"""Marks of schema fields, as annotations beside their constraints: what a key matters to.

`temperature: InEval[Changeable[Temperature]]`. A mark on a field that is a group holds for all keys below it.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, TypeVar, get_args, get_origin

T = TypeVar("T")


class Mark(Enum):
    """What a key matters to; a key without a mark may change in a resumed run and has no effect on an evaluation."""

    frozen = "must keep its value when a run is resumed"
    changeable = "may change when a run is resumed, although its group is frozen"
    evaluation = "has an effect on every evaluation; for `kind`: choosing the group's option has"
    evaluation_compute = "has an effect on speed or hardware of an evaluation, but not on prompts, samples or scores"
    model_evaluation = "has an effect on the evaluation of a Hugging Face model; for a run it is fixed"
    agent_model_evaluation = "the same, as a key of an agent only"


Frozen = Annotated[T, Mark.frozen]
Changeable = Annotated[T, Mark.changeable]
InEval = Annotated[T, Mark.evaluation]
EvalCompute = Annotated[T, Mark.evaluation_compute]
InModelEval = Annotated[T, Mark.model_evaluation]
AgentInModelEval = Annotated[T, Mark.agent_model_evaluation]


def find_metadata(hint: Any) -> tuple[Any, ...]:
    """Annotations of a type and of the first annotated member of a union."""
    if get_origin(hint) is Annotated:
        return (*hint.__metadata__, *find_metadata(hint.__origin__))
    return next((found for part in get_args(hint) if (found := find_metadata(part))), ())


def find_marks(hint: Any) -> frozenset[Mark]:
    """Marks of a field's type."""
    return frozenset(part for part in find_metadata(hint) if isinstance(part, Mark))


def remove_marks(hint: Any) -> Any:
    """A field's type with its constraints and without its marks."""
    if get_origin(hint) is not Annotated:
        return hint
    constraints = tuple(part for part in hint.__metadata__ if not isinstance(part, Mark))
    return Annotated[(hint.__origin__, *constraints)] if constraints else hint.__origin__
