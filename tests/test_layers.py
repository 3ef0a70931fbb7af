"""Who may import whom: downwards, or within a layer; and each outside library in its own place."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ippo_cli

ROOT = Path(ippo_cli.__file__).parent
LAYERS = {
    "config": 0,
    "types": 1,
    "formulas": 1,
    "engine": 2,
    "models": 2,
    "tasks": 2,
    "rewards": 2,
    "agents": 3,
    "rollout": 3,
    "algorithms": 3,
    "training": 4,
    "evaluation": 5,
    "cli": 6,
}
FILES = sorted(ROOT.rglob("*.py"))
# Library -> where it may be imported.
PLACES = {
    "deepspeed": ("engine/zero.py",),
    "peft": ("models/lora.py", "models/linear_maps.py"),
    "hydra": ("cli/", "config/"),
    "omegaconf": ("cli/", "config/"),
    "yaml": ("cli/", "config/"),
    "vllm": ("rollout/vllm.py",),
    "tensorboard": ("training/trackers/tensorboard_files.py",),
    "torch.utils.tensorboard": ("training/trackers/tensorboard_files.py",),
    "wandb": ("training/trackers/wandb_run.py",),
    "mlflow": ("training/trackers/mlflow_run.py",),
    "datasets": ("tasks/",),
    "rich": ("training/",),
    "jinja2": ("tasks/",),
    "gymnasium": ("tasks/worlds/",),
    "pettingzoo": ("tasks/worlds/pettingzoo_world.py",),
    "reasoning_gym": ("tasks/worlds/reasoning_gym_world.py",),
    "httpx2": ("rewards/remote.py",),
    "math_verify": ("rewards/math_verify_call.py",),
}


@cache
def imports(file: Path) -> list[tuple[str, int]]:
    """Every module that a file imports, anywhere in it, with the line."""
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


def named(file: Path) -> str:
    return str(file.relative_to(ROOT))


def module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("file", [file for file in FILES if file != ROOT / "__init__.py"], ids=named)
def test_a_module_imports_only_from_its_own_layer_or_below(file: Path) -> None:
    for module, line in imports(file):
        owner, _, rest = module.partition(".")
        if owner == "ippo_cli" and rest not in ("", "__version__"):
            other = LAYERS[rest.split(".")[0]]
            assert other <= layer(file), f"{named(file)}:{line} imports {module}, which lies above it"


def test_every_part_of_the_package_has_a_layer() -> None:
    parts = {file.relative_to(ROOT).parts[0].removesuffix(".py") for file in FILES} - {"__init__"}
    assert parts == set(LAYERS)


@pytest.mark.parametrize("library", PLACES)
def test_a_library_is_imported_in_its_own_place_alone(library: str) -> None:
    for file in FILES:
        for module, line in imports(file):
            if module == library or module.startswith(library + "."):
                assert named(file).startswith(PLACES[library]), f"{named(file)}:{line} imports {module}"


def test_formulas_know_torch_and_each_other_alone() -> None:
    allowed = {"torch", "jaxtyping", "__future__", *sys.stdlib_module_names}
    for file in (ROOT / "formulas").glob("*.py"):
        for module, line in imports(file):
            fine = module.split(".")[0] in allowed or module.startswith("ippo_cli.formulas")
            assert fine, f"{named(file)}:{line} imports {module}"


def test_only_what_loads_the_configuration_knows_its_loader() -> None:
    loaders = ("ippo_cli.config.load",)
    for part in LAYERS.keys() - {"config", "types", "cli"}:
        for file in (ROOT / part).rglob("*.py"):
            assert [module for module, _ in imports(file) if module.startswith(loaders)] == [], named(file)


def test_what_answers_before_training_imports_no_torch() -> None:
    modules = [
        "ippo_cli.cli.train",
        "ippo_cli.cli.evaluate",
        "ippo_cli.cli.rank",
        "ippo_cli.cli.exits",
        "ippo_cli.cli.resume",
        "ippo_cli.cli.diagnose",
        "ippo_cli.training.folder",
        "ippo_cli.training.launch",
        *(module(file) for file in (ROOT / "config").rglob("*.py")),
    ]
    code = f"import json, sys; [__import__(name) for name in {modules!r}]; print(json.dumps(list(sys.modules)))"
    code += "\nimport ippo_cli.training.planning.trial; print(json.dumps(list(sys.modules)))"
    there = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT.parent)}, capture_output=True, check=True
    )
    before, looked = ({name.split(".")[0] for name in json.loads(line)} for line in there.stdout.splitlines())
    assert before & {"torch", "transformers", "deepspeed", "datasets", "numpy", "tokenizers", "rich"} == set()
    # Who starts ranks looks at task and data, and stays beside them for as long as they train.
    assert looked & {"transformers", "deepspeed", "datasets", "tokenizers", "rich"} == set()


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [named(file) for file in FILES if file.stem in ("utils", "helpers", "common", "misc", "base")] == []


def test_every_module_begins_with_its_purpose() -> None:
    for file in FILES:
        text = ast.get_docstring(ast.parse(file.read_text()))
        assert text is not None, named(file)
        assert text.splitlines()[0].rstrip().endswith((".", "?", "`")), named(file)
