"""`actor.chat_template`: a file in place of the tokenizer's chat template, in training and in what a run leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from folders import PRINTABLE, model_folder
from transformers import AutoTokenizer

from ippo_cli.agents.initial import pin_revisions
from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import build_config, compose_node, resolve_config, to_yaml
from ippo_cli.config.errors import ConfigError, ResumeError
from ippo_cli.config.schema import Config
from ippo_cli.config.teams import policy_by_agent
from ippo_cli.evaluation.evaluate_run import find_weights, load_policies
from ippo_cli.evaluation.export import ExportRequest, export_agents
from ippo_cli.planning.model_specs import read_model_specs
from ippo_cli.runs.folder import reserve_folder, write_start_files
from ippo_cli.tasks.conversation import prompt_formats
from ippo_cli.tasks.task import load_task
from ippo_cli.tasks.templates import first_message
from ippo_cli.training.process import run_training

MARKED = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}({{ style }})<assistant>"
REWRITING = "{% for m in messages %}<{{ m.role }}>{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}<assistant>"


def overrides(root: Path, template: str, *more: str) -> list[str]:
    """One agent on a few rows, with a chat template from a file."""
    (root / "chat.jinja").write_text(template)
    rows = [json.dumps({"q": f"{number} + 1?", "a": str(number + 1)}) for number in range(8)]
    (root / "rows.jsonl").write_text("\n".join(rows))
    model = model_folder(root / "model", PRINTABLE, chat=True, context=256)
    keys = [
        "task=jsonl",
        f"task.train={root}/rows.jsonl",
        f"task.eval={root}/rows.jsonl",
        "task.agents.solo.template={q}",
        "task.agents.solo.answer={a}",
        "actor=full",
        f"actor.model={model}",
        f"actor.chat_template={root}/chat.jinja",
        "actor.dtype=fp32",
        "num_iterations=1",
        "evaluation.every=0",
        "algorithm.mini_batch_size=4",
        "rollout.buffer_size=4",
        "rollout.max_new_tokens=4",
        f"output_dir={root}/runs",
        "tracker.console=plain",
        "launch.threads=1",
        *more,
    ]
    return normalize_arguments(keys)


@pytest.mark.slow
def test_run_and_its_models_use_the_template_of_the_file(tmp_path: Path) -> None:
    typed = overrides(tmp_path, MARKED, "task.agents.solo.chat_template_args={style: brief}")
    plain = resolve_config(compose_node(typed))
    config = build_config(plain)
    folder = reserve_folder(tmp_path / "runs")
    write_start_files(folder, to_yaml(plain), typed, ["ippo-train"], resumed=False)
    run_training(config, folder, resumed=False)
    file = tmp_path / "chat.jinja"
    file.write_text(MARKED + " ")
    with pytest.raises(ResumeError, match=r"chat\.jinja differs from what this run started with"):
        pin_revisions(config, {"solo": str(tmp_path / "model")}, folder)
    with pytest.raises(ResumeError, match=r"chat\.jinja differs"):
        find_weights(folder, "initial", policy_by_agent(config))
    file.unlink()
    weights = find_weights(folder, "latest", policy_by_agent(config))
    policies = load_policies(config, weights, torch.device("cpu"), {})
    formats = prompt_formats(config.task, config.rollout, {name: policy.tokenizer for name, policy in policies.items()})
    assert formats["solo"].text("2 + 1?") == "<user>2 + 1?\n(brief)<assistant>"
    request = ExportRequest(
        run_folder=folder,
        target=tmp_path / "exported",
        checkpoint="latest",
        agents=(),
        is_merged=True,
        needs_critic=False,
        command="ippo-export",
    )
    exported = export_agents(config, request, lambda _: None) / "solo"
    assert AutoTokenizer.from_pretrained(exported).chat_template == MARKED
    card = (exported / "README.md").read_text()
    assert 'chat template: chat.jinja, saved as chat_template.jinja\nchat_template_args: {"style": "brief"}' in card
    file.write_text(MARKED)
    request = replace(request, checkpoint="initial", target=tmp_path / "initial")
    exported = export_agents(config, request, lambda _: None) / "solo"
    assert AutoTokenizer.from_pretrained(exported).chat_template == MARKED


def test_template_that_rewrites_earlier_turns_is_refused(tmp_path: Path) -> None:
    typed = overrides(tmp_path, REWRITING, "task.num_turns=2", "task.agents.solo.turn_template=more")
    config = build_config(resolve_config(compose_node(typed)))
    specs = read_model_specs(config, load_task(config.task, config.seed))
    with pytest.raises(ConfigError, match="needs a chat template that keeps earlier messages unchanged"):
        prompt_formats(config.task, config.rollout, specs.tokenizers)["solo"].check_history_continues()


CALLS = "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"


def tool_rows(root: Path, template: str) -> Config:
    """A row with a tool's result as its last message, after one without calls."""
    typed = overrides(root, template, "task.agents.solo.template=messages:p")
    question = {"role": "user", "content": "1 + 1?"}
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    talks = [[question], [question, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "2"}]]
    (root / "rows.jsonl").write_text("\n\n".join(json.dumps({"p": talk, "a": "2"}) for talk in talks))
    return build_config(resolve_config(compose_node(typed)))


def test_template_writes_tool_calls_and_results_of_rows(tmp_path: Path) -> None:
    config = tool_rows(tmp_path, MARKED.replace("{{ m.content }}", "{{ m.content }}" + CALLS))
    task = load_task(config.task, config.seed)
    tokenizers = read_model_specs(config, task).tokenizers
    text = prompt_formats(config.task, config.rollout, tokenizers)["solo"].text(
        first_message("solo", config.task.agents["solo"], task.train[1])
    )
    assert text == '<user>1 + 1?<assistant>[add {"a": 1}]<tool>2()<assistant>'


def test_row_with_tool_calls_that_the_template_does_not_show(tmp_path: Path) -> None:
    config = tool_rows(tmp_path, MARKED)
    with pytest.raises(ConfigError) as raised:
        read_model_specs(config, load_task(config.task, config.seed))
    message = str(raised.value)
    assert message.startswith("task.agents.solo.template=messages:... has calls of tools or results, and the chat")
    assert message.endswith(f"convert them to text with task.map ({tmp_path}/rows.jsonl, line 3)")
