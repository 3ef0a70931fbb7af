"""Commands of the wheel run from any folder, with the `conf/` inside the wheel."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of a new environment with only the wheel; other packages come from this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    code = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"
    build = subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert build.returncode == 0, build.stderr
    wheel = folder / build.stdout.split()[-1]
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
