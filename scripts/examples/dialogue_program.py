"""A program for `task=program`: two agents speak in turn, twice each. Needs the package openai."""

from typing import Any

from openai import AsyncOpenAI


async def play(example: dict[str, Any], endpoint: Any) -> None:
    """Play an episode. Without a return value, the configured reward scores it."""
    client = AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
    messages: dict[str, list[Any]] = {"low": [], "high": []}

    async def say(agent: str, text: str) -> str:
        messages[agent].append({"role": "user", "content": text})
        completion = await client.chat.completions.create(model=agent, messages=messages[agent])
        messages[agent].append(completion.choices[0].message)
        return completion.choices[0].message.content or ""

    text = example["question"]
    for _ in range(2):
        answer = await say("low", text)
        text = f"high: {await say('high', f'low: {answer}')}"
