"""Packages import only packages of lower layers; each external library is imported only in its place."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ippo_cli

ROOT = Path(ippo_cli.__file__).parent
ORDER = [
    "config",
    "types",
    "formulas",
    "user_code",
    "engine",
    "processes",
    "models",
    "tasks",
    "rewards",
    "algorithms",
    "rollout",
    "agents",
    "runs",
    "forecast",
    "diagnosis",
    "reporting",
    "report",
    "planning",
    "training",
    "evaluation",
    "pilot",
    "compose",
    "verification",
    "sweeps",
    "controls",
    "benchmark",
    "catalog",
    "cli",
    "api",
    "__main__",
    "lab",
]
LAYERS = {part: place for place, part in enumerate(ORDER)}
FILES = sorted(ROOT.rglob("*.py"))
PLANNING = (ROOT / "planning").glob("*.py")
# Library -> where it may be imported.
PLACES = {
    "deepspeed": ("engine/zero.py", "engine/deepspeed_ops.py"),
    "peft": ("models/lora.py", "models/linear_maps.py"),
    "hydra": ("compose/", "sweeps/", "cli/train.py", "config/commands.py", "api/"),
    "omegaconf": ("compose/", "sweeps/", "cli/train.py", "cli/start_training.py", "api/"),
    "yaml": ("compose/", "sweeps/", "runs/run_files.py"),
    "vllm": ("rollout/vllm/",),
    "tensorboard": ("reporting/trackers/tensorboard_files.py",),
    "torch.utils.tensorboard": ("reporting/trackers/tensorboard_files.py",),
    "wandb": ("reporting/trackers/wandb_run.py",),
    "mlflow": ("reporting/trackers/mlflow_run.py",),
    "datasets": ("tasks/",),
    "rich": ("reporting/",),
    "jinja2": ("tasks/rows.py", "user_code/"),
    "gymnasium": ("tasks/environments/",),
    "pettingzoo": ("tasks/environments/pettingzoo.py",),
    "reasoning_gym": ("tasks/environments/reasoning_gym.py",),
    "websockets": ("tasks/environments/openenv_session.py",),
    "httpx2": ("rewards/remote.py", "rollout/completion_client.py"),
    "mcp": ("tasks/tools/mcp_server.py",),
    "math_verify": ("rewards/math_verify_call.py",),
}


@cache
def imports(file: Path) -> list[tuple[str, int]]:
    """Return every imported module of a file with its line."""
    return list(_imports(file))


def _imports(file: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports relatively"
            assert node.module is not None
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def layer(file: Path) -> int:
    part = file.relative_to(ROOT).parts[0].removesuffix(".py")
    return LAYERS[part]


def relative_path(file: Path) -> str:
    return str(file.relative_to(ROOT))


def module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("file", [file for file in FILES if file != ROOT / "__init__.py"], ids=relative_path)
def test_module_imports_only_lower_layers(file: Path) -> None:
    for module, line in imports(file):
        owner, _, rest = module.partition(".")
        if owner == "ippo_cli" and rest not in ("", "__version__"):
            other = LAYERS[rest.split(".")[0]]
            assert other <= layer(file), f"{relative_path(file)}:{line} imports {module} of a higher layer"


def test_every_package_has_a_layer() -> None:
    parts = {file.relative_to(ROOT).parts[0].removesuffix(".py") for file in FILES} - {"__init__"}
    assert parts == set(LAYERS)


def test_core_does_not_name_the_lab() -> None:
    """The core works without the folder: its methods are entry points in `pyproject.toml`."""
    files = [
        file for file in ROOT.rglob("*") if file.suffix in (".py", ".yaml", ".txt") and ROOT / "lab" not in file.parents
    ]
    pattern = re.compile(r"ippo_cli[./]lab\b")
    assert [relative_path(file) for file in files if pattern.search(file.read_text())] == []
    assert pattern.search((ROOT.parents[1] / "pyproject.toml").read_text()) is not None


@pytest.mark.parametrize("library", PLACES)
def test_library_is_imported_only_in_its_place(library: str) -> None:
    for file in FILES:
        for module, line in imports(file):
            if module == library or module.startswith(library + "."):
                assert relative_path(file).startswith(PLACES[library]), f"{relative_path(file)}:{line} imports {module}"


def test_formulas_import_only_torch() -> None:
    allowed = {"torch", "jaxtyping", "__future__", *sys.stdlib_module_names}
    for file in (ROOT / "formulas").glob("*.py"):
        for module, line in imports(file):
            is_allowed = module.split(".")[0] in allowed or module.startswith("ippo_cli.formulas")
            assert is_allowed, f"{relative_path(file)}:{line} imports {module}"


def test_config_loader_is_imported_only_by_composition_and_commands() -> None:
    loaders = ("ippo_cli.compose.load",)
    for part in LAYERS.keys() - {"types", "compose", "verification", "sweeps", "controls", "cli", "api", "__main__"}:
        for file in (ROOT / part).rglob("*.py"):
            assert [module for module, _ in imports(file) if module.startswith(loaders)] == [], relative_path(file)


def test_code_before_training_does_not_import_torch() -> None:
    modules = [
        "ippo_cli.cli.train",
        "ippo_cli.cli.evaluate",
        "ippo_cli.cli.rank",
        "ippo_cli.compose.exits",
        "ippo_cli.compose.resume",
        "ippo_cli.compose.diagnose",
        "ippo_cli.runs.folder",
        "ippo_cli.runs.launch",
        *(module(file) for part in ("config", "compose") for file in (ROOT / part).rglob("*.py")),
    ]
    code = f"import json, sys; [__import__(name) for name in {modules!r}]; print(json.dumps(list(sys.modules)))"
    code += "\nimport ippo_cli.planning.trial; print(json.dumps(list(sys.modules)))"
    process = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT.parent)}, capture_output=True, check=True
    )
    before, preview = ({name.split(".")[0] for name in json.loads(line)} for line in process.stdout.splitlines())
    assert before & {"torch", "transformers", "deepspeed", "datasets", "numpy", "tokenizers", "rich"} == set()
    # The parent of ranks previews task and data, and stays in memory during training.
    assert preview & {"transformers", "deepspeed", "datasets", "tokenizers", "rich"} == set()


def test_no_module_has_a_meaningless_name() -> None:
    assert [relative_path(file) for file in FILES if file.stem in ("utils", "helpers", "common", "misc", "base")] == []


def test_every_module_has_a_docstring() -> None:
    for file in FILES:
        text = ast.get_docstring(ast.parse(file.read_text()))
        assert text is not None, relative_path(file)
        assert text.splitlines()[0].rstrip().endswith((".", "?", "`")), relative_path(file)


TRUNK = (
    "trainer.py",
    "experience.py",
    "build_trainer.py",
    "team_update.py",
    "targets.py",
    "checkpoint.py",
    "update.py",
    "resume_point.py",
)
METHOD_NAMES = (
    "refill_rounds",
    "Refill",
    "monte_carlo",
    "continuation",
    "role_baseline",
    "turn_group",
    "share_rollouts",
    "popart",
    "hacpo",
    "greedy_baseline",
    "leave_one_out",
    "Capabilities",
    "sequential_",
    "start_normalization",
    "opponent_pool",
    "PoolState",
    "CURRICULUM",
)


# Names of engines, environments and rewards; those of vLLM are in the memory model, and to be moved.
FEATURE_NAMES = (
    *METHOD_NAMES,
    "ensemble",
    "NormalizationScope",
    "reward_to_go",
    "credit_cost",
    "CreditAssignment",
    "SortingConfig",
    "RelayConfig",
    "LadderConfig",
    "SignallingConfig",
    "GymnasiumConfig",
    "PettingzooConfig",
    "ProgramConfig",
    "EngineRolloutConfig",
    "collapse",
    "forecast",
    "stop_at_risk",
)
VLLM_FILES = ("remedies.py", "run_memory.py", "sampler_memory.py")


@pytest.mark.parametrize(
    "name", [*(f"training/{name}" for name in TRUNK), "config/checks.py", *sorted(map(relative_path, PLANNING))]
)
def test_trunk_names_no_feature(name: str) -> None:
    """Plans of methods are in the methods' files, rules of tasks in their schema, of engines in their own."""
    text = (ROOT / name).read_text()
    names = [word for word in FEATURE_NAMES if word in text]
    if not name.endswith(VLLM_FILES):
        names += re.findall(r"(?i)vllm\w*", text)
    assert names == []


@pytest.mark.parametrize("name", TRUNK)
def test_stages_of_an_iteration_name_no_method(name: str) -> None:
    """A method has one file, `training/methods/NAME.py`, and one line in `training/methods/build.py`."""
    file = ROOT / "training" / name
    allowed = tuple(f"ippo_cli.training.methods.{part}" for part in ("method", "build", "registry"))
    for module, line in imports(file):
        if module.startswith("ippo_cli.training.methods."):
            assert module.startswith(allowed), f"{name}:{line} imports {module}"
    text = file.read_text()
    assert [word for word in METHOD_NAMES if word in text] == []


def test_only_the_gate_prints() -> None:
    """Text for a terminal passes `runs/output.py`, which escapes control characters of names, values and errors."""
    allowed = ("runs/output.py", "reporting/trackers/child.py")  # the latter writes JSON to a pipe
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            is_print = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            assert not is_print or relative_path(file) in allowed, f"{relative_path(file)}:{node.lineno} prints"
