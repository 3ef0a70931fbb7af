"""Commands in the README and `docs/start.md` compose; commands for pretrained models have suitable settings."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.compose.user_files import check_user_files
from ippo_cli.config.checks import check_config
from ippo_cli.engine.number_formats import default_dtype

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
START = (ROOT / "docs" / "start.md").read_text()


def commands() -> list[list[str]]:
    """Return the overrides of every `ippo-train` command in a block of the README or of `docs/start.md`."""
    found: list[list[str]] = []
    for block in re.findall(r"```bash\n(.*?)```", README + START, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["ippo-train"]:
                found.append(words[1:])
    return found


# Sweeps, flags and resumed runs have other tests.
PLAIN = [words for words in commands() if not any(word.startswith(("-", "resume=")) for word in words)]


@pytest.mark.parametrize("words", PLAIN, ids=" ".join)
def test_command_composes_and_passes_checks(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [task_file] = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    Path("mine.yaml").write_text(task_file)
    overrides = normalize_arguments(words)
    check_user_files(overrides)
    config = load_config(overrides)
    check_config(config, config.launch.processes)
    for agent in config.task.agents.values() if "actor=full" in words else ():
        assert agent.actor.dtype.value == default_dtype()
        assert agent.actor.learning_rate <= 1e-5
        assert getattr(agent.critic, "learning_rate", 1e-5) <= 5e-5
        assert config.rollout.max_new_tokens >= 256
        assert (config.num_iterations or 0) >= 200
        assert config.task.chat_template == "auto"  # type: ignore[attr-defined]


def test_readme_trains_a_pretrained_model() -> None:
    assert any("actor=full" in words for words in PLAIN)
    assert len(PLAIN) >= 5


def test_readme_has_at_most_900_words() -> None:
    assert len(README.split()) <= 900
