"""LangGraph: a model and its tools as the nodes of a graph."""

import json
import operator
import os
from typing import Annotated, TypedDict

from langchain.chat_models import init_chat_model
from langchain.messages import AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain.tools import tool
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph


@tool
def add(a: int, b: int) -> int:
    """Add `a` and `b`."""
    return a + b


model = init_chat_model("solo", model_provider="openai").bind_tools([add])


class State(TypedDict):
    messages: Annotated[list[AnyMessage], operator.add]


def call_model(state: State) -> dict:
    system = SystemMessage("Calculate with the tools.")
    return {"messages": [model.invoke([system, *state["messages"]])]}


def call_tools(state: State) -> dict:
    results = []
    for call in state["messages"][-1].tool_calls:
        try:
            result = str(add.invoke(call["args"]))
        except Exception as error:  # an unknown tool, or arguments that do not fit
            result = f"Error: {error}"
        results.append(ToolMessage(result, tool_call_id=call["id"]))
    return {"messages": results}


def route(state: State) -> str:
    return "call_tools" if state["messages"][-1].tool_calls else END


graph = StateGraph(State)
graph.add_node("call_model", call_model)
graph.add_node("call_tools", call_tools)
graph.add_edge(START, "call_model")
graph.add_conditional_edges("call_model", route, ["call_tools", END])
graph.add_edge("call_tools", "call_model")

try:
    answer = graph.compile().invoke({"messages": [HumanMessage("What is 3 + 4?")]})["messages"][-1].content
except GraphRecursionError:
    answer = ""
with open(os.environ["IPPO_RESULT"], "w") as file:
    json.dump(float("7" in answer), file)
