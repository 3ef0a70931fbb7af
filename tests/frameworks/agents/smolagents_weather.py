"""smolagents: a code agent that manages an agent with tools."""

import json
import os

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool


@tool
def get_weather(place: str) -> str:
    """Tell the weather.

    Args:
        place: a city
    """
    return f"It rains in {place}."


def make_model(agent: str) -> OpenAIModel:
    return OpenAIModel(agent, api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])


worker = ToolCallingAgent(
    tools=[get_weather], model=make_model("worker"), max_steps=3, name="meteorologist", description="Knows the weather."
)
manager = CodeAgent(tools=[], model=make_model("manager"), managed_agents=[worker], max_steps=3)
answer = manager.run("How is the weather in Paris?")
with open(os.environ["IPPO_RESULT"], "w") as file:
    json.dump(float("rains" in str(answer)), file)
