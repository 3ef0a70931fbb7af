"""Formats in which models write tool calls: values of `task.agents.NAME.tool_format`."""

from __future__ import annotations

from enum import Enum


class ToolFormat(str, Enum):
    auto = "auto"
    hermes = "hermes"
    llama3 = "llama3"
    mistral = "mistral"
    qwen3_coder = "qwen3_coder"
    glm = "glm"
    gpt_oss = "gpt_oss"
    lfm2 = "lfm2"
    json = "json"
