"""Commands of the pages for users of other projects compose, and train an iteration with tiny models."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.compose.user_files import check_user_files
from ippo_cli.config.checks import check_config
from ippo_cli.runs.records import find_runs

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "examples"))

from small_model import make  # noqa: E402

PAGES = {page: (ROOT / "docs" / f"from_{page}.md").read_text() for page in ("trl", "comlrl", "verl", "openrlhf")}
FILES = {
    name: text
    for page in PAGES.values()
    for name, text in re.findall(r"```\w+\n# (\S+\.(?:yaml|py))\n(.*?)```", page, re.DOTALL)
}
COMMANDS = [
    pytest.param(shlex.split(text.replace("\\\n", " "))[1:], id=f"{page}{number}")
    for page, whole in PAGES.items()
    for number, text in enumerate(re.findall(r"```bash\n(ippo-train .*?)```", whole, re.DOTALL))
]
HUB_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with the files of the pages and data for their commands."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    rows = [
        {
            "prompt": f"Write {number}.",
            "question": f"What is {number} + 1?",
            "answer": f"#### {number + 1}",
            "context_messages": [{"role": "user", "content": f"Write {number}."}],
        }
        for number in range(16)
    ]
    for name in ("train.jsonl", "test.jsonl"):
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize("words", COMMANDS)
def test_command_composes_and_passes_checks(words: list[str], folder: Path) -> None:
    overrides = normalize_arguments(words)
    check_user_files(overrides)
    config = load_config(overrides)
    check_config(config, config.launch.processes)


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS)
def test_command_trains_tiny_models(words: list[str], folder: Path) -> None:
    Path("text").write_text("Write a summary of 1 2 3 4 5 6 7 8 9. What is 1 + 1? " * 20)
    make(folder / "text", folder / "lm", vocabulary=300, hidden=16, layers=1, seed=0)
    settings = AutoConfig.from_pretrained(folder / "lm", num_labels=1)
    AutoModelForSequenceClassification.from_config(settings).save_pretrained(folder / "rm")
    AutoTokenizer.from_pretrained(folder / "lm").save_pretrained(folder / "rm")
    models = {"=SFT": "=lm", "=MODEL": "=lm", "=REWARD": "=rm", f"={HUB_MODEL}": "=lm"}
    for name, path in models.items():
        words = [re.sub(f"{re.escape(name)}$", path, word) for word in words]
    if "task=gsm8k" in words:
        words += ["task.train=train.jsonl", "task.eval=test.jsonl"]
    small = ["rollout.buffer_size=16", "rollout.max_new_tokens=4", "evaluation.size=4", "max_iterations_this_run=1"]
    small += ["algorithm.mini_batch_size=8"]
    keys = {word.partition("=")[0] for word in small}
    words = [word for word in words if word.partition("=")[0] not in keys]
    done = subprocess.run([sys.executable, "-m", "ippo_cli.cli.train", *words, *small], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = find_runs(folder / "outputs")
    assert run.metrics[-1]["iteration"] == 1
