"""What a program receives: the address and key of its episode."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An OpenAI-compatible address for one episode: `AsyncOpenAI(base_url=..., api_key=...)`, `model=AGENT`.

    The environment variables `OPENAI_BASE_URL` and `OPENAI_API_KEY` have the same values.
    """

    base_url: str
    api_key: str  # of this episode alone
    agents: list[str]
    seed: int  # equal for equal examples and random numbers of the run: a resumed run repeats it
