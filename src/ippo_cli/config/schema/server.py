"""Keys of connections to inference servers with OpenAI's interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ippo_cli.config.constraints import Name, Range
from ippo_cli.config.marks import Changeable, EvalCompute


@dataclass
class ServerConnectionConfig:
    """A connection to a server that runs already and keeps its weights."""

    token_env: EvalCompute[Changeable[Name | None]]
    # name of the environment variable that holds the API key, never the key itself; null = no key
    start_timeout_s: EvalCompute[Changeable[Annotated[float, Range(0.0, open_low=True)]]]  # until a server answers
    request_timeout_s: EvalCompute[Changeable[Annotated[float, Range(0.0, open_low=True)]]]  # without any answer
