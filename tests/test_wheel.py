"""The wheel, built from the source distribution, runs and trains from any folder with the `conf/` inside it."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def build_distribution(kind: str, folder: Path, *, source: Path) -> Path:
    """Build the wheel or the source distribution of a source tree."""
    code = f"import hatchling.build, sys; print(hatchling.build.build_{kind}(sys.argv[1]))"
    build = subprocess.run([sys.executable, "-c", code, str(folder)], cwd=source, capture_output=True, text=True)
    assert build.returncode == 0, build.stderr
    return folder / build.stdout.split()[-1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of a new environment with only the wheel; other packages come from this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    archive = build_distribution("sdist", folder, source=ROOT)
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    wheel = build_distribution("wheel", folder, source=folder / archive.name.removesuffix(".tar.gz"))
    names = zipfile.ZipFile(wheel).namelist()
    expected = {f"ippo_cli/conf/{path.relative_to(ROOT / 'conf')}" for path in (ROOT / "conf").rglob("*.yaml")}
    assets = ROOT / "src" / "ippo_cli" / "report" / "assets"
    expected |= {f"ippo_cli/report/assets/{path.relative_to(assets)}" for path in assets.rglob("*") if path.is_file()}
    assert expected <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "outputs/", "conf/"))]
    environment = folder / "env"
    venv.create(environment, with_pip=False)
    site = next((environment / "lib").glob("python*")) / "site-packages"
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site / "parent.pth").write_text("\n".join(ours) + "\n")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(environment / "bin" / "python"),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--ignore-installed",
        str(wheel),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return environment / "bin"


def run(program: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(program), *arguments], cwd=folder, capture_output=True, text=True)


@pytest.mark.core
@pytest.mark.slow
def test_installed_commands_compose_from_another_folder(installed, tmp_path):
    help_result = run(installed / "ippo-train", "--help", folder=tmp_path)
    assert help_result.returncode == 0
    assert help_result.stdout.startswith("ippo-train:")
    composed = run(installed / "ippo-train", "--cfg", "job", "--resolve", "algorithm=ppo", folder=tmp_path)
    assert composed.returncode == 0, composed.stderr
    assert "objective: clip" in composed.stdout
    printed_path = run(
        installed / "python", "-c", "from ippo_cli.compose.load import config_dir; print(config_dir())", folder=tmp_path
    )
    assert Path(printed_path.stdout.strip()).is_relative_to(installed.parent), "conf/ of the wheel is used"
    assert run(installed / "ippo-eval", "--help", folder=tmp_path).returncode == 0
    assert not list(tmp_path.iterdir()), "no file is written"


@pytest.mark.core
@pytest.mark.slow
def test_installed_command_trains_in_another_folder(installed, tmp_path):
    small = ["num_iterations=1", "rollout.buffer_size=8", "algorithm.mini_batch_size=8", "evaluation.size=4"]
    done = run(installed / "ippo-train", *small, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    [state] = tmp_path.glob("outputs/default/*/run.json")
    assert json.loads(state.read_text())["state"] == "done"
