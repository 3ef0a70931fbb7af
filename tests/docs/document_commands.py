"""Collects the shell commands of README.md and docs/*.md, and runs those that need no network, GPU or cluster.

    python tests/docs/document_commands.py docs/start.md     # runs a page's commands; prints each one and its output

Commands run as typed, in the order of the page, in a folder with small random models and data under the names that
pages use (`PATH`, `outputs/default/RUN`, `train.jsonl`). A training run ends after one iteration, by additional keys.
"""

from __future__ import annotations

import atexit
import gzip
import importlib
import json
import multiprocessing
import multiprocessing.context
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "scripts" / "examples"
TIMEOUT_S = 900

SKIPPED = (
    (r"\bpip install|-m venv|-m pip", "installs packages"),
    (r"^scripts/t(rain|est)\.sh( |$)(?!\+experiment)|^source ", "makes .venv"),
    (r"smollm2\.py models/", "downloads a model"),
    (r"^sbatch|submitit_slurm", "needs SLURM"),
    (r"^scripts/vllm_environment\.sh|^ippo-train rollout=vllm", "needs vLLM"),
    (r"launch\.nodes=2", "needs two machines"),
    (r"task=openenv", "needs an OpenEnv server"),
    (r"task\.environment=textworld_env", "needs TextWorld"),
    (r"VERIFIERS_ENVIRONMENT|verifiers_\w+\.py", "needs verifiers"),
    (r"reward=judge", "needs a model server"),
    (r"^MLFLOW_TRACKING_URI", "needs an MLflow server"),
    (r"^lm_eval|^wandb sync|^TRACKIO_DIR", "is another program"),
    (r"jokes/bin", "needs pydantic-ai"),
    (r"^for peer|comlrl_entry", "needs environments of other projects"),
    (r"failing_runs\.py", "takes half an hour"),
    (r"^ippo-train -m algorithm=ippo,ppo 'seed=range\(1,4\)'$", "trains the same jobs as a later command"),
    (r"^ippo-train -m sweep=ppo_population algorithm=ppo$", "trains the same jobs as a later command"),
)
"""What does not run here, and why: patterns of commands."""

PACKAGES = ("gymnasium", "pettingzoo", "reasoning_gym", "textarena", "optuna", "trackio", "wandb", "mlflow")

TESTED_ELSEWHERE = ("docs/from_trl.md", "docs/from_comlrl.md", "docs/from_verl.md", "docs/from_openrlhf.md")
"""Pages with commands that `test_from_pages.py` trains."""

MODELS = ("PATH", "PATH_OR_HUB_ID", "MODEL", "OTHER", "FOLDER", "QWEN7B", "SMOLLM2", "LAYERS", "models/smollm2")
MODELS += ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-7B-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct")

TEMPLATE = "{% if tools %}<tool_call>{{ tools }}</tool_call>{% endif %}"  # of the format `hermes`

SMALL = ("max_iterations_this_run=1", "evaluation.size=8")
SMALL_TINY = ("actor.warm_start_steps=2", "actor.hidden_size=16", "actor.num_layers=1", "rollout.buffer_size=16")
SMALL_PRETRAINED = (
    "rollout.buffer_size=16",
    "rollout.max_new_tokens=4",
    "algorithm.mini_batch_size=16",
    "actor.dtype=fp32",
)
SMALL_SWEEP = ("num_iterations=2", "evaluation.size=8", *SMALL_TINY)

OMITTED = {
    "docs/memory.md": "task=gsm8k actor=full actor.model=FOLDER algorithm=ppo",
    "docs/tasks.md": "task=jsonl task.train=train.jsonl task.eval=test.jsonl task.agents.solo.answer={answer}",
    "docs/rewards.md": "actor=full actor.model=PATH task.train=train.jsonl task.eval=test.jsonl",
    "docs/recipes.md": "actor.model=models/smollm2",
    "docs/tools.md": "actor=full task.eval=test.jsonl task.agents.solo.answer={answer}",
}
"""Arguments for `...` of a page's commands."""
DATA = "task.train=train.jsonl task.eval=test.jsonl"  # for the hub datasets of tasks

REPLACED: Mapping[str, Sequence[tuple[str, str]]] = {
    "docs/benchmark.md": (
        (
            r"^ippo-bench run .*",
            r"\g<0> num_iterations=1 evaluation.every=1 rollout.buffer_size=16 algorithm.mini_batch_size=16 "
            "actor.hidden_size=16 actor.warm_start_steps=2 actor.warmup_iterations=0 seeds=1 "
            "controls.arms=[shared_policy]",
        ),
    ),
    "docs/critics.md": ((r"outputs/critics/RUN", "$(ls -d outputs/critics/*)"),),
    "docs/doctor.md": (
        ("compare RUN RUN", "compare outputs/default/RUN outputs/b/RUN"),
        (r" RUN\b", " outputs/b/RUN"),
        ("compare outputs/default ", "compare outputs "),
    ),
    "docs/evaluation.md": (
        ("run=outputs/NAME/RUN exploitability", "run=outputs/game/RUN exploitability"),
        (r"run=outputs/NAME/RUN (?=\w+=true \w+_reference=exact)", "run=outputs/short/RUN "),
        ("run=outputs/default/RUN task.eval", "run=outputs/rows/RUN task.eval"),
        ("outputs/NAME/RUN", "outputs/default/RUN"),
        ("checkpoint=80 attribution_baseline=40", "checkpoint=3 attribution_baseline=2"),
        ("exploitability_iterations=40", "exploitability_iterations=2"),
        (r"^(ippo-eval model=)exported", r"ippo-export run=outputs/default/RUN to=team && \1team"),
    ),
    "docs/memory.md": (("launch.processes=8", "launch.processes=4"),),
    "docs/recipes.md": (("launch.processes=8", "launch.processes=2"),),
    "docs/reliability.md": (("iterations=12,40", "iterations=1,2"),),
    "docs/results.md": ((r"outputs/critics/RUN", "$(ls -d outputs/critics/*)"),),
    "docs/rewards.md": (("--layers 8", "--layers 1"),),
    "docs/sweeps.md": (
        (r" sweep\.(trials|members|generations)=\d+", ""),
        (r"sweep=(optuna|ppo_learning_rates)", r"sweep=\1 sweep.trials=2 sweep.startup_trials=1"),
        # its largest mini-batch has 128 episodes
        ("sweep=ppo_population", r"\g<0> sweep.members=2 sweep.generations=2 rollout.buffer_size=128"),
        (r"outputs/default/multirun-[\d-]+", "$(ls -d outputs/default/multirun-* | head -1)"),
    ),
}
"""Values of commands that need another run, or take long: patterns and their replacements, by page."""
LONG_SWEEPS = ((r"range\(1,4\)", "range(1,2)"), (r"\bseed=1,2\b", "seed=1"), (r"turn\*\]", "turn*,d*,h*,i*,m*,v*]"))

FILES = {
    "my_env.py": "guess.py",
    "my.py": "def report(row):\n    pass\n",
    "rows.py": "def make(row):\n    return {**row, 'prompt': row['question']}\n",
    "prompts.py": "def solver(example):\n    return example['question']\n",
    "pennies.py": """
class Pennies:
    def reset(self, seed):
        return {"even": "?", "odd": "?"}, {}

    def step(self, actions):
        won = 1.0 if actions["even"] == actions["odd"] else -1.0
        return {}, {"even": won, "odd": -won}, True, False, {}

    def actions(self):
        return {"even": ["0", "1"], "odd": ["0", "1"]}
""",
    "pennies.yaml": """
defaults: [/base/environment, _self_]
environment: pennies.py:Pennies
agents:
  even: {template: "{observation}>"}
  odd: {template: "{observation}<"}
""",
    "helpful.py": """
def score(examples, responses):
    (texts,) = responses.values()
    return {"team": [float(len(text)) for text in texts]}
""",
}
"""Files that pages name and do not show."""


@dataclass(frozen=True)
class Command:
    """A command of a page, as typed; continued lines are joined and comments are removed."""

    page: str
    line: int
    text: str

    @property
    def skip_reason(self) -> str | None:
        """Why it does not run here; None if it does."""
        missing = [name for name in PACKAGES if re.search(rf"={name}\b", self.text) and find_spec(name) is None]
        reasons = (reason for pattern, reason in SKIPPED if re.search(pattern, self.text))
        return f"needs {missing[0]}" if missing else next(reasons, None)

    @property
    def is_sweep(self) -> bool:
        return bool(re.search(r"ippo-train -m ", self.text))

    @property
    def is_training(self) -> bool:
        """Whether it trains, so that it has to be shortened."""
        is_train = re.search(r"\bippo-train\b|ippo_cli\.cli\.train|^\.\.\. \+exp|^scripts/train\.sh", self.text)
        return bool(is_train and not re.search(r"mode=plan|ippo-train --|\bresume=outputs", self.text))

    @property
    def options(self) -> frozenset[str]:
        """Options of groups and top-level keys, such as `algorithm=ppo`."""
        return frozenset(word for word in shlex.split(self.text) if re.match(r"\+?[a-z]+=(?!\d)", word))


def read_commands(page: str) -> list[Command]:
    """The commands of a page's shell blocks."""
    text = (ROOT / page).read_text()
    found = []
    for block in re.finditer(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        first = text[: block.start(1)].count("\n") + 1
        lines = block[1].split("\n")[:-1]
        number = 0
        while number < len(lines):
            start, whole = number, lines[number]
            while whole.endswith("\\") or (whole.startswith("for ") and not whole.endswith("done")):
                number += 1
                whole = whole.removesuffix("\\") + ("" if whole.endswith("\\") else "\n") + lines[number]
            number += 1
            typed = re.sub(r"\s+# .*$|^# .*$", "", whole) if "\n" not in whole else whole
            if typed.strip():
                found.append(Command(page, first + start, " ".join(typed.split()) if "\n" not in typed else typed))
    return found


@cache
def pages() -> dict[str, list[Command]]:
    """Pages with commands."""
    names = ["README.md", *(f"docs/{file.name}" for file in sorted((ROOT / "docs").glob("*.md")))]
    return {name: commands for name in names if name not in TESTED_ELSEWHERE and (commands := read_commands(name))}


@cache
def commands_to_train() -> frozenset[Command]:
    """Training commands with an option that no earlier one has, or with another launcher, or of a run used later.

    Others are composed and checked.
    """
    found, seen = {pages()["docs/start.md"][0]}, set()
    for command in (command for commands in pages().values() for command in commands):
        if command.is_training and not command.is_sweep and command.skip_reason is None:
            is_plain = command.text.startswith("ippo-train ") and not re.search(r"outputs/| name=", command.text)
            if not command.options <= seen or not is_plain:
                found.add(command)
            seen |= command.options
    return frozenset(found)


def complete(command: Command) -> str:
    """The command for this machine: without `...`, shortened, and with other values where it needs other runs."""
    text = re.sub(r"^scripts/train\.sh(?= \+)", "ippo-train", command.text)
    text = re.sub(r"^\.\.\.", "ippo-train ...", text).replace("8000", str(free_port()))
    text = re.sub(r"\b(resume=outputs/\S+)", r"\1 max_iterations_this_run=null", text)
    for pattern, value in REPLACED.get(command.page, ()):
        text = re.sub(pattern, value, text)
    if "..." in text:
        text = add_keys(re.sub(r" \S*\.\.\.", "", text), OMITTED.get(command.page, "").split())
    if re.search(r"task=(gsm8k|math)\b|\+experiment=(gsm8k|rlinf)", text) and "task.eval=" not in text:
        text = add_keys(text, DATA.split())
    if command.is_sweep:
        for pattern, value in LONG_SWEEPS:
            text = re.sub(pattern, value, text)
        return add_keys(text, SMALL_SWEEP)
    if not command.is_training:
        return text
    if "critic=adapter" in text:
        text = add_keys(text, ("critic.rank=8",))
    is_pretrained = re.search(r"actor=(full|lora)|actor\.model=", text)
    small = (*SMALL, *(SMALL_PRETRAINED if is_pretrained else SMALL_TINY))
    names = "|".join(re.escape(word.partition("=")[0]) for word in small)
    return add_keys(re.sub(rf" (?:{names})=\S+", "", text), small)


def add_keys(text: str, words: Sequence[str]) -> str:
    """Append overrides of keys that the command does not have."""
    return " ".join([text, *(shlex.quote(word) for word in words if f"{word.partition('=')[0]}=" not in text)])


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    command: Command
    text: str  # as it was run
    code: int
    output: str
    seconds: float

    @property
    def failure(self) -> str | None:
        if self.code == 0 and "Traceback (most recent call last)" not in self.output:
            return None
        return f"{self.command.page}:{self.command.line}: {self.text}\n  exit code {self.code}\n{self.output[-2000:]}"


def run_page(page: str, folder: Path) -> Iterator[Result]:
    """Run the commands of a page in a folder, in order."""
    write_page_files(page, folder)
    folder.joinpath("scripts").symlink_to(ROOT / "scripts")
    with ExitStack() as servers:
        for command in pages()[page]:
            if command.skip_reason is not None:
                continue
            if command.is_training and not command.is_sweep and command not in commands_to_train():
                yield check_command(command, folder)
                continue
            text = complete(command)
            if re.search(r"reward_server\.py|serve=true", text):
                servers.enter_context(run_server(text, folder))
                continue
            yield run_text(command, text, folder)


def run_text(command: Command, text: str, folder: Path) -> Result:
    """Run a command; its input is one line. The shell runs it unless it is a plain command of this project."""
    began = time.perf_counter()
    name, words = split_plain_command(text)
    if name is None:
        name, words = "", ["timeout", str(TIMEOUT_S), "bash", "-o", "pipefail", "-c", text]
    code, output = run_words(name, words, folder)
    return Result(command, text, code, output, time.perf_counter() - began)


def split_plain_command(text: str) -> tuple[str | None, list[str]]:
    """Module of an `ippo-...` command and its arguments; None if the command needs a shell."""
    parts = list(shlex.shlex(text, posix=True, punctuation_chars=True))
    name = MODULES.get(text.split(" ")[0])
    if name is None or "$" in text or {"|", ">", "<", "&&", ";", "&"} & set(parts):
        return None, []
    return name, shlex.split(text)[1:]


def run_words(module: str, words: Sequence[str], folder: Path) -> tuple[int, str]:
    """Exit code and output of a module's `main`, in a fork of a process that has imported torch, or of a program."""
    with tempfile.NamedTemporaryFile("w+") as output:
        process = fork_server().Process(target=run_in_fork, args=(module, list(words), str(folder), output.name))
        process.start()
        process.join(TIMEOUT_S)
        if process.is_alive():
            process.terminate()
            process.join()
        return process.exitcode or 0, Path(output.name).read_text()


@cache
def fork_server() -> multiprocessing.context.ForkServerContext:
    """Processes that begin with torch, transformers and DeepSpeed imported: this takes longer than most commands."""
    os.environ.update(make_environment())
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["transformers", "deepspeed", "peft", "ippo_cli.training.process"])
    return context


def run_in_fork(module: str, words: list[str], folder: str, output: str) -> None:
    """Become the command: its folder, input, output and arguments. Without a module, execute the words."""
    os.chdir(folder)
    read, write = os.pipe()
    os.write(write, b"fig\n")
    os.close(write)
    os.dup2(read, 0)
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    if not module:
        os.execvp(words[0], words)
    sys.stdin = os.fdopen(0)
    sys.argv = [f"ippo-{module}", *words]
    importlib.import_module(f"ippo_cli.cli.{module}").main()


def check_command(command: Command, folder: Path) -> Result:
    """Compose the configuration of a training command and check it, in a process of its own."""
    words = shlex.split(complete(command))[1:]
    began = time.perf_counter()
    with tempfile.NamedTemporaryFile("w+") as output:
        process = fork_server().Process(target=compose, args=(words, str(folder), output.name))
        process.start()
        process.join()
        seconds = time.perf_counter() - began
        return Result(command, f"(composed) {shlex.join(words)}", process.exitcode or 0, output.read(), seconds)


def compose(words: list[str], folder: str, output: str) -> None:
    """Compose overrides and check the configuration. Raises `ConfigError`."""
    os.chdir(folder)
    os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND), 2)
    from ippo_cli.compose.arguments import normalize_arguments
    from ippo_cli.compose.load import load_config
    from ippo_cli.compose.user_files import check_user_files
    from ippo_cli.config.checks import check_config

    overrides = normalize_arguments(words)
    check_user_files(overrides)
    config = load_config(overrides)
    check_config(config, config.launch.processes)


@cache
def free_port() -> int:
    """A port for the servers of pages, which are written with port 8000."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    offline = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "TRACKIO_SPACE_ID": "", "OMP_NUM_THREADS": "1"}
    return os.environ | offline | {"PATH": path, "PYTHONPATH": str(Path(__file__).parent)}


@contextmanager
def run_server(text: str, folder: Path) -> Iterator[None]:
    """Start a server and wait until its port answers; end it afterwards."""
    port = int(re.findall(r"port[ =](\d+)", text)[0]) if "port" in text else None
    process = subprocess.Popen(
        ["bash", "-c", f"exec {text}"],
        cwd=folder,
        env=make_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise AssertionError(f"{text} ended: {process.stdout.read() if process.stdout else ''}")
            if port is not None and not socket.socket().connect_ex(("127.0.0.1", port)):
                break
            if port is None and process.stdout is not None and "http" in process.stdout.readline():
                break
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(30)


def write_page_files(page: str, folder: Path) -> None:
    """Write what the commands of a page read: its own files, data, models and runs."""
    own = {"my_reward.py": re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]}
    own |= dict(re.findall(r"```\w+\n# (\S+\.(?:yaml|py))[^\n]*\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))
    guess = dict(re.findall(r"```\w+\n# (\S+\.py)\n(.*?)```", (ROOT / "docs/episodes.md").read_text(), re.DOTALL))
    for name, text in (FILES | own).items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(guess.get(text, text))
    for file in EXAMPLES.glob("*.py"):
        shutil.copy(file, folder)
    write_data(folder)
    link_models(folder)
    typed = " ".join(complete(command) for command in pages()[page])
    for name in dict.fromkeys(re.findall(r"outputs/(\w+)", typed)):
        if name in RUNS:
            shutil.copytree(train_run(RUNS[name]), folder / "outputs" / name / "RUN")


MODULES = {
    name: entry.split(":")[0].removeprefix("ippo_cli.cli.")
    for name, entry in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].items()
}
"""Modules of `ippo_cli.cli` by the names of commands."""

RUNS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "a": (),
    "b": ("seed=2",),
    "lora": ("actor=tiny_lora",),
    "game": ("task=pennies.yaml", "rollout.max_new_tokens=1"),
    "short": ("task=sorting_solo", "rollout.max_new_tokens=2"),
    "rows": ("task=jsonl", *DATA.split(), "task.agents.solo.answer={answer}"),
}
"""Runs that pages name, with their overrides."""


@cache
def shared_folder() -> Path:
    """A folder with data, task files and models, for the runs that pages name; it is removed at the end."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    write_data(folder)
    write_models(folder)
    return folder


def link_models(folder: Path) -> None:
    """The language model under all names of `MODELS`, and a reward model as `REWARD`."""
    for name in MODELS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(shared_folder() / "small_model")
    (folder / "REWARD").symlink_to(shared_folder() / "reward_model")


@cache
def train_run(overrides: tuple[str, ...]) -> Path:
    """Train a run for three of four iterations; returns its folder."""
    folder, name = shared_folder(), f"run{abs(hash(overrides))}"
    words = ["num_iterations=4", "max_iterations_this_run=3", "checkpoint.every=1", "checkpoint.keep=10"]
    words += ["evaluation.every=1", "evaluation.size=8", *SMALL_TINY]
    words += [f"name={name}", "output_dir=made", *overrides]
    command = Command("", 0, shlex.join(["ippo-train", *words]))
    result = run_text(command, command.text, folder)
    assert result.failure is None, result.failure
    [run] = (folder / "made" / name).iterdir()
    return run


def write_data(folder: Path) -> None:
    """Rows with the fields that the pages use."""
    levels = ("easy", "medium", "hard")
    rows = [
        {
            "prompt": f"What is {number} + 1?",
            "question": f"What is {number} + 1?",
            "problem": f"What is {number} + 1?",
            "answer": f"#### {number + 1}",
            "reward_model": {"ground_truth": str(number + 1)},
            "level": levels[number % 3],
            "chosen": [{"role": "user", "content": f"Add {number}."}, {"role": "assistant", "content": "Yes."}],
            "rejected": [{"role": "user", "content": f"Add {number}."}, {"role": "assistant", "content": "No."}],
        }
        for number in range(60)
    ]
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "data").mkdir()
    for name in ("train.jsonl", "questions.jsonl", "data/rows.jsonl"):
        (folder / name).write_text("".join(lines))
    for name in ("test.jsonl", "held_out.jsonl", "other.jsonl"):
        (folder / name).write_text("".join(lines[:8]))
    (folder / "letters.jsonl").write_text('{"letter": "a"}\n{"letter": "b"}\n')
    check = "def check(candidate):\n    assert candidate(1) == 2\n"
    problem = {
        "prompt": "def add(a):\n",
        "entry_point": "add",
        "test": check,
        "canonical_solution": "    return a + 1\n",
    }
    with gzip.open(folder / "HumanEval.jsonl.gz", "wt") as file:
        file.write((json.dumps(problem) + "\n") * 164)

    import pyarrow
    from pyarrow import parquet

    for name in ("math.parquet", "pairs.parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / name)


def write_models(folder: Path) -> None:
    """A language model and a reward model with random weights."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    sys.path.insert(0, str(EXAMPLES))
    import small_model

    (folder / "text").write_text("Write a summary of 1 2 3 4 5 6 7 8 9. What is 1 + 1? " * 20)
    model = folder / "small_model"
    small_model.make(folder / "text", model, vocabulary=300, hidden=16, layers=1, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = TEMPLATE + tokenizer.chat_template
    tokenizer.save_pretrained(model)
    settings = AutoConfig.from_pretrained(model, num_labels=1)
    AutoModelForSequenceClassification.from_config(settings).save_pretrained(folder / "reward_model")
    tokenizer.save_pretrained(folder / "reward_model")


if __name__ == "__main__":
    for given in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as place:
            for finished in run_page(given, Path(place)):
                print(f"==== {given}:{finished.command.line} {finished.seconds:.0f} s, exit code {finished.code}")
                print(f"$ {finished.text}\n{finished.output}", flush=True)
