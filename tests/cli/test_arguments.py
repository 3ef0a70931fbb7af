"""What is typed at a door, and what Hydra is given for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from ippo_cli.cli.arguments import arguments, quoted
from ippo_cli.cli.diagnose import diagnose
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.load import compose_node

MINE = """\
defaults:
  - /schema/task_sorting@_here_
  - /base/sorting@_here_
  - _self_

agents:
  only:
    template: "{letters}"
    system: null
    answer: "{sorted}"
"""


@pytest.mark.parametrize(
    "value",
    ["{question}", "Q: {question}\nA:", "it's {question}", "{a}, {b}", "{q} \\",
     "\\'{q}", "\\\\'{q}\\\\", "a 'b {c}' d", "{q}\\n", "{{literal}} {q}", "漢字 {q}"],
)  # fmt: skip
def test_a_template_can_be_typed_as_it_is(value: str) -> None:
    node = compose_node(arguments([f"task.agents.low.template={value}"]))
    assert node.task.agents.low.template == value


@pytest.mark.parametrize(
    "text", ["seed=1", "seed=1,2", "reward.processor=[scale,clip]", "name='a b'", "-m", "job", "~task.agents.low", "=3"]
)
def test_what_hydra_reads_is_left_alone(text: str) -> None:
    assert quoted(text) == text


def test_flags_may_stand_between_overrides_and_what_launchers_add_is_dropped() -> None:
    assert arguments(["seed=1", "--cfg", "job", "--local_rank=3", "num_iterations=2", "-m"]) == [
        "--cfg", "job", "-m", "seed=1", "num_iterations=2"
    ]  # fmt: skip


@pytest.mark.parametrize("flag", ["--config-dir={}", "--config-dir {}", "-cd {}"])
def test_task_files_of_ones_own_are_found_and_offered(flag: str, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "own" / "task").mkdir(parents=True)
    (tmp_path / "own" / "task" / "mine.yaml").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    given = arguments([*flag.format("own").split(), "task=mine"])
    assert list(compose_node(given).task.agents) == ["only"]
    monkeypatch.chdir("/")  # a run is resumed from wherever one stands
    assert list(compose_node(given).task.agents) == ["only"]
    for wrong, said in (("task=mein", "closest: mine"), ("sede=1", "sede=1 is no key; did you mean seed?")):
        bad = [wrong, given[1]]
        with pytest.raises((HydraException, OmegaConfBaseException)) as raised:
            compose_node(bad)
        assert said in str(diagnose(bad, raised.value))


@pytest.mark.parametrize("given", [["--config-dir=/nope"], ["--config-dir"], ["-cd", "/nope"]])
def test_a_folder_that_is_not_there_is_told(given: list[str]) -> None:
    with pytest.raises(ConfigError, match="is no folder"):
        arguments(given)


@pytest.mark.parametrize(
    ("typed", "place"),
    [
        ("task.train=data.jsonl", "data.jsonl"),
        ("task.eval='my, data.jsonl'", "my, data.jsonl"),
        ("actor.model=model", "model"),
        ("task.agents.low.critic.warm_start=./model", "model"),
        ("reward.function=score.py:score", "score.py:score"),
    ],
)
def test_what_names_a_file_or_folder_is_written_in_full(
    typed: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert arguments([typed]) == [typed], "there is no such file: a name on the hub, or a module"
    (tmp_path / "model").mkdir()
    for name in ("data.jsonl", "my, data.jsonl", "score.py"):
        (tmp_path / name).touch()
    (made,) = arguments([typed])
    parsed = OverridesParser.create().parse_override(made)
    assert parsed.value() == str(tmp_path / place)
    assert arguments([made]) == [made]
