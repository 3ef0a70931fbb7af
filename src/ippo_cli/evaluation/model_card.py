"""The model card of an exported agent: data, reward, algorithm, scores, and the commands that produced it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ippo_cli.config.schema import Config, DataConfig
from ippo_cli.config.secrets import mask_secrets
from ippo_cli.config.text import format_count
from ippo_cli.evaluation.evaluate_run import EvaluatedWeights
from ippo_cli.runs.records import RunRecord

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SHOWN_SCORES = 12


def model_card(config: Config, agent: str, run: Path, weights: EvaluatedWeights, command: str, *, merged: bool) -> str:
    """The card as Markdown with a YAML header."""
    others = [name for name in config.task.agents if name != agent]
    partners = f" together with {', '.join(others)}" if others else ""
    iteration = weights.metadata.get("iteration", 0)
    base = _base_description(config, agent)
    parts = [
        _hub_header(config, agent, merged=merged),
        f"# {agent} of the run {config.name}",
        f"A language model {'' if merged else 'adapter (peft, LoRA) '}trained by ippo-cli as the agent `{agent}`"
        f"{partners}, after {iteration} iterations. It was initialized from {base}.",
        "## Use",
        _code_block(_usage_example(agent, merged=merged), "python"),
        _sampling_section(config, agent, merged=merged),
        "Its prompts in training, with fields of the example in braces"
        + (", as the user message of the chat template:" if _has_chat_template(config) else ":"),
        _code_block("\n".join(_prompt_lines(config, agent))),
        "## Data",
        _code_block(_format_yaml(config.task, leave_out=("agents", "primary_metric"))),
        "## Reward",
        _code_block(_format_yaml(config.reward)),
        "## Algorithm",
        _code_block(
            "\n".join(
                [
                    _format_yaml(config.algorithm),
                    f"critic: {config.task.agents[agent].critic.kind.value}",
                    f"team: {config.team.kind.value}",
                    f"learning_rate: {config.task.agents[agent].actor.learning_rate:g}",
                    f"iterations: {iteration}",
                    f"samples per iteration: {config.rollout.buffer_size}",
                    f"seed: {config.seed}",
                ]
            )
        ),
        "## Scores",
        _score_section(config, run, weights),
        "## Commands",
        _code_block("\n".join([*RunRecord(run).commands, command]), "bash"),
        _code_block("\n".join(_version_lines(run))),
    ]
    return str(mask_secrets("\n\n".join(parts))) + "\n"


def _hub_header(config: Config, agent: str, *, merged: bool) -> str:
    """The YAML header of the card, which the hub reads."""
    model = config.task.agents[agent].actor
    source = getattr(model, "model", None)
    lines = ["---", f"library_name: {'transformers' if merged else 'peft'}", "pipeline_tag: text-generation"]
    if source is not None and HUB_ID.fullmatch(str(source)) and not Path(str(source)).exists():
        lines.append(f"base_model: {source}")
    data = [config.task.train] if isinstance(config.task, DataConfig) else []
    datasets = [name for name in data if isinstance(name, str) and HUB_ID.fullmatch(name) and not Path(name).exists()]
    lines += ["datasets:", *(f"- {name}" for name in datasets)] if datasets else []
    lines += ["tags:", "- reinforcement-learning", "- ppo", *(["- multi-agent"] if len(config.task.agents) > 1 else [])]
    return "\n".join([*lines, "---"])


def _base_description(config: Config, agent: str) -> str:
    actor = config.task.agents[agent].actor
    source = getattr(actor, "model", None)
    adapter = " with a LoRA adapter" if actor.trains_adapter else ""
    return f"a small model that the run created{adapter}" if source is None else f"`{source}`{adapter}"


def _usage_example(agent: str, *, merged: bool) -> str:
    library, kind = ("transformers", "AutoModelForCausalLM") if merged else ("peft", "AutoPeftModelForCausalLM")
    return (
        f"from {library} import {kind}\n"
        "from transformers import AutoTokenizer\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{agent}")\n'
        f'model = {kind}.from_pretrained("{agent}")'
    )


def _sampling_section(config: Config, agent: str, *, merged: bool) -> str:
    """The sampling settings of training, and whether the library applies them by default."""
    sampling = config.task.agents[agent].rollout
    does = (
        "`generate` uses the same settings by default (`generation_config.json`)"
        if merged
        else "an adapter has no generation config, so pass these settings to `generate`"
    )
    ends = ", and needs `tokenizer=tokenizer` for the stop strings" if sampling.stop_strings else ""
    return f"Sampling settings of training; {does}{ends}:\n\n{_code_block(_format_yaml(sampling))}"


def _has_chat_template(config: Config) -> bool:
    return config.task.chat_template_choice is not False


def _prompt_lines(config: Config, agent: str) -> Iterator[str]:
    settings = config.task.agents[agent]
    if settings.actor.chat_template is not None:
        yield f"chat template: {Path(settings.actor.chat_template).name}, saved as chat_template.jinja"
    if settings.chat_template_args:
        yield f"chat_template_args: {json.dumps(settings.chat_template_args, ensure_ascii=False)}"
    for key in ("system", "template", "turn_template"):
        if (text := getattr(settings, key)) is not None:
            yield f"{key}: {text}"


def _score_section(config: Config, run: Path, subject: EvaluatedWeights) -> str:
    """Scores before training and of these weights from the run's own evaluation, and from later `ippo-eval` results."""
    rows = _metrics_by_iteration(run)
    before, now = rows.get(0, {}), rows.get(int(subject.metadata.get("iteration", 0)), {})
    known = [key for key in dict.fromkeys([config.task.primary_metric, *now, *before]) if "/turn/" not in key]
    lines = []
    if known and (now or before):
        lines = ["| held-out metric | before training | these weights |", "|---|---|---|"]
        lines += [
            f"| `{key}` | {_format_number(before.get(key))} | {_format_number(now.get(key))} |"
            for key in known[:SHOWN_SCORES]
        ]
    for file in sorted((run / "evaluations").glob(f"{subject.name}-*.json")):
        try:
            found = json.loads(file.read_text())
            metric, score, count = found["primary_metric"], found["score"], found["rows"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        interval = found.get("intervals", {}).get(metric)
        bounds = ""  # null if the evaluation had only one row
        if interval is not None and interval["low"] is not None:
            bounds = f" [{interval['low']:.4f}, {interval['high']:.4f}]"
        typed = " ".join(found.get("overrides", [])) or "as in training"
        lines += [
            "",
            f"`ippo-eval` on {format_count(count, 'row')}: `{metric}` {_format_number(score) or 'unknown'}{bounds} "
            f"({_inline_code(typed)})",
        ]
    return "\n".join(lines) or "These weights were not evaluated."


def _metrics_by_iteration(run: Path) -> dict[int, dict[str, float | None]]:
    """Held-out metrics in `metrics.jsonl` by iteration."""
    found: dict[int, dict[str, float | None]] = {}
    for row in RunRecord(run).metrics:
        scores = {
            name.removeprefix("eval/"): None if math.isnan(value) else value
            for name, value in row.items()
            if name.startswith("eval/")
        }
        if scores:
            found[int(row["iteration"])] = scores
    return found


def _version_lines(run: Path) -> Iterator[str]:
    packages = RunRecord(run).environment.get("packages")
    for name, version in packages.items() if isinstance(packages, Mapping) else ():
        yield f"{name} {version}"


def _format_yaml(node: Any, prefix: str = "", leave_out: tuple[str, ...] = ()) -> str:
    """The keys of a group that are not null, one `key: value` per line."""
    lines: list[str] = []
    for leaf in fields(node):
        value = getattr(node, leaf.name)
        if leaf.name in leave_out or value is None:
            continue
        if is_dataclass(value):
            lines.append(_format_yaml(value, f"{prefix}{leaf.name}."))
        else:
            lines.append(f"{prefix}{leaf.name}: {_format_value(value)}")
    return "\n".join(line for line in lines if line)


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_format_value, value)) + "]"
    return str(getattr(value, "value", value))


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _inline_code(text: str) -> str:
    """Text as inline code, with enough backticks around it."""
    ticks = "`" * (max([0, *map(len, re.findall("`+", text))]) + 1)
    return f"{ticks}{text}{ticks}" if "`" not in (text[:1], text[-1:]) else f"{ticks} {text} {ticks}"


def _code_block(text: str, language: str = "") -> str:
    """Text as a code block, with a fence longer than any in the text."""
    fence = "`" * max(3, *(len(ticks) + 1 for ticks in re.findall("`+", text)), 3)
    return f"{fence}{language}\n{text}\n{fence}"
