"""Pydantic AI: an editor whose tool is another agent with structured output."""

import json
import os

from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import UnexpectedModelBehavior

editor = Agent(
    "openai-chat:editor",
    instructions="Use `write_titles` to get some titles, then return the best one.",
)
writer = Agent("openai-chat:writer", output_type=list[str])


@editor.tool
async def write_titles(ctx: RunContext[None], count: int) -> list[str]:
    result = await writer.run(f"Write {count} titles.", usage=ctx.usage)
    return result.output


try:
    title = editor.run_sync("A title for a story about the sea, please.").output
except UnexpectedModelBehavior:  # no usable response after several attempts
    title = ""
with open(os.environ["IPPO_RESULT"], "w") as file:
    json.dump(float("sea" in title), file)
