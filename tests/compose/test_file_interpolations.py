"""Files of other people cannot read the environment through interpolations."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.file_interpolations import FILE_RESOLVERS, find_resolvers
from ippo_cli.compose.load import compose_node, load_config
from ippo_cli.compose.resume import resolve_resume
from ippo_cli.config.errors import ConfigError

SORTING = "defaults:\n  - sorting\n  - _self_\n"
TEMPLATE = "agents:\n  low:\n    template: '{}'\n"
VARIABLE = "DOORS_VARIABLE"


@pytest.fixture(autouse=True)
def variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "value of the variable")
    monkeypatch.setenv("DOORS_API_KEY", "hunter2hunter2")


def compose_file(folder: Path, text: str, group: str = "task") -> None:
    (folder / "mine.yaml").write_text(text)
    plus = "+" if group == "experiment" else ""
    load_config(normalize_arguments([f"{plus}{group}={folder}/mine.yaml"]))


@pytest.mark.parametrize(
    ("group", "text", "place"),
    [
        ("task", SORTING + TEMPLATE.format("${oc.env:DOORS_VARIABLE} {prompt}"), "line 6: agents.low.template"),
        ("task", SORTING + TEMPLATE.format("${ oc.env:DOORS_VARIABLE} {prompt}"), "line 6: agents.low.template"),
        ("task", SORTING + TEMPLATE.format('${oc.select:x,"${oc.env:DOORS_VARIABLE}"}'), "line 6: agents.low.temp"),
        ("task", SORTING + TEMPLATE.format('${oc.decode:"\\${oc.env:DOORS_VARIABLE}"}'), "line 6: agents.low.temp"),
        ("task", SORTING + TEMPLATE.format("${oc.${mode}:DOORS_VARIABLE}"), "line 6: agents.low.template"),
        ("task", SORTING + "prompt: '${eval:1+1}'\n", "line 4: prompt calls the resolver eval"),
        ("reward", "defaults:\n  - http\n  - _self_\nurl: http://x/${oc.env:DOORS_VARIABLE}\n", "line 4: url"),
        ("experiment", "# @package _global_\noutput_dir: ${oc.env:DOORS_VARIABLE}\n", "line 2: output_dir"),
        ("sweep", "defaults:\n  - grid\n  - _self_\nx: '\\${oc.env:DOORS_VARIABLE}'\n", "line 4: x"),
    ],
)
def test_files_cannot_call_resolvers_that_read_more_than_the_configuration(
    group: str, text: str, place: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        compose_file(tmp_path, text, group)
    message = str(refused.value)
    assert message.startswith(f"{tmp_path}/mine.yaml, {place}")
    assert "type the value on the command line: " in message
    assert "value of the variable" not in message


def test_option_of_an_installed_package_cannot_read_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "doors_package"
    (package / "task").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    overrides = ["hydra.searchpath=[pkg://doors_package]", "task=packaged"]
    (package / "task" / "packaged.yaml").write_text(SORTING + TEMPLATE.format("${seed} {prompt}"))
    assert compose_node(overrides).task.agents.low.template == "0 {prompt}"
    (package / "task" / "packaged.yaml").write_text(SORTING + TEMPLATE.format("${oc.env:DOORS_VARIABLE}"))
    with pytest.raises(ConfigError, match=r"packaged.yaml, line 6: agents.low.template reads an environment variable"):
        compose_node(overrides)
    sys.modules.pop("doors_package", None)


def test_command_line_reads_the_environment() -> None:
    config = load_config(normalize_arguments(["task.agents.low.template=${oc.env:DOORS_VARIABLE} {prompt}"]))
    assert config.task.agents["low"].template == "value of the variable {prompt}"


def test_files_call_resolvers_of_the_configuration(tmp_path: Path) -> None:
    compose_file(tmp_path, "# @package _global_\nname: ${oc.select:seed}-${now:%Y}\n", "experiment")
    assert find_resolvers("a ${x:1} ${y:${z:2}} ${seed} \\${w:3}") == ["x", "y", "z"]
    assert not {name for name in FILE_RESOLVERS if not OmegaConf.has_resolver(name)}


def test_text_that_names_a_secret_is_not_replaced_by_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task.agents.low.template has the text \$\{oc.env:DOORS_API_KEY\}"):
        compose_file(tmp_path, SORTING + TEMPLATE.format("\\${oc.env:DOORS_API_KEY} {prompt}"))


@pytest.mark.parametrize(
    "saved",
    [
        "task.agents.low.template=${oc.env:DOORS_VARIABLE}",
        "++task.agents={low:{template:'${oc.env:DOORS_VARIABLE}'}}",
        "+task.agents.low.chat_template_args.x=${oc.env:DOORS_VARIABLE}",
    ],
)
def test_prompts_of_a_saved_run_cannot_read_the_environment(saved: str, tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step_00000001").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step_00000001" / "manifest.json").write_text("{}")
    (tmp_path / "config.yaml").touch()
    (tmp_path / "run.json").write_text('{"state": "preempted"}')
    (tmp_path / "overrides.json").write_text(json.dumps([saved]))
    with pytest.raises(ConfigError, match=r"overrides.json: task.agents.low.\S+ reads an environment variable"):
        resolve_resume([f"resume={tmp_path}"])
