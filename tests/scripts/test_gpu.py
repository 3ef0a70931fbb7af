"""The benchmark of a GPU: its tables, skipped parts, and the time limit of a part."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
ITERATION = {
    "rollout_s": 3.0,
    "targets_s": 1.0,
    "update_s": 2.0,
    "iteration_s": 6.5,
    "tokens_per_second_decoded": 1234.4,
    "decode_share_of_bandwidth": 0.5,
    "update_mfu": 0.25,
    "peak_memory_mib": 100.0,
}
FOUND: dict[str, Any] = {
    "torch": "2.0",
    "device": "a GPU",
    "given": {"rows": 8, "tokens": 16},
    "peak": {"flops": 2e12, "bandwidth": 3e9},
    "train": {"tiny": ITERATION, "seconds": 9.0},
    "vllm": {"tiny": ITERATION | {"transfer_s": 0.5, "verification_s": 0.25, "sampler_gap": 0.001}},
    "overlap": {"skipped": "this version has no key"},
    "update": {
        "tiny": {
            "8 x 16": {
                "padded": {"skipped": "out of memory"},
                "varlen": {"seconds": 0.5, "tokens_per_second": 256.0, "mfu": 0.25, "kernels": 300, "waits": 4},
            },
            "skipped": "batches from 8 x 32 on: 150 s had passed",
        },
        "messages": [],
    },
    "head": {"tiny": {"ours": {"seconds": 0.25, "loss": 7.0}}, "failed": "not finished\nafter 1 s"},
}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Function that imports a module of the benchmarks."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    yield import_module
    for name in set(sys.modules) - before:
        if (BENCH / f"{name}.py").exists():
            del sys.modules[name]


def test_tables(bench: Any) -> None:
    text = bench("gpu_report").render(FOUND)
    assert "2.0 TFLOP/s, 3 GB/s" in text
    assert "| tiny | `vllm` | 1234 | 0.50 | 0.25 | 3.00 1.00 2.00 | 6.50 s | 100 |  |" in text
    assert "| tiny | 0.500 s | 0.250 s | 1.00e-03 |" in text
    assert "`overlap` skipped: this version has no key" in text
    assert "| tiny | 8 x 16 | padded | out of memory |" in text
    assert "| tiny | 8 x 16 | varlen | 0.500 s | 256 | 0.25 |  |  | 300 | 4 |" in text
    assert "| tiny | ours | 0.2500 s |  |" in text
    assert "`head` failed: not finished after 1 s" in text


def test_heads_have_equal_losses(bench: Any, tmp_path: Path) -> None:
    given = bench("gpu_runs").Given(device="cpu", shapes=("tiny",), tokens=16, rows=8, folder=tmp_path)
    found = bench("gpu_update").head(given)["tiny"]
    assert found["torch"]["loss"] == pytest.approx(found["ours"]["loss"], rel=0.01)
    assert found["ours, with entropy"]["loss"] < found["ours"]["loss"]


@pytest.mark.slow
def test_steps_are_measured(bench: Any, tmp_path: Path) -> None:
    given = ["--device", "cpu", "--shapes", "tiny", "--tokens", "16", "--rows", "8", "--parts", "update"]
    script = Path(bench("gpu").__file__)
    subprocess.run([sys.executable, script, tmp_path, *given], check=True, capture_output=True, timeout=300)
    found = json.loads((tmp_path / "gpu.json").read_text())["update"]["tiny"]["8 x 16"]
    assert all(form["tokens_per_second"] > 0 for form in found.values())


def test_rows_of_a_step_share_prompts(bench: Any) -> None:
    rollout, targets = bench("gpu_update").make_rows(bench("gpu_runs").SHAPES["tiny"], "cpu", 9, 32)
    assert (rollout.prompt_ids[:8] == rollout.prompt_ids[0]).all()
    assert (rollout.prompt_ids[8] != rollout.prompt_ids[0]).any()
    assert rollout.length.max() == rollout.response_ids.shape[1] == 24
    assert targets.loss_mask.sum(dim=1).tolist() == rollout.length.tolist()


def test_block_of_a_document_is_replaced(bench: Any, tmp_path: Path) -> None:
    report, file = bench("gpu_report"), tmp_path / "page.md"
    file.write_text(f"before\n{report.START}\nold\n{report.END}\nafter\n")
    report.fill_block(file, "new\n")
    report.fill_block(file, "newer\n")
    assert file.read_text() == f"before\n{report.START}\nnewer\n{report.END}\nafter\n"
    file.write_text("without marks")
    with pytest.raises(SystemExit, match="add the two lines"):
        report.fill_block(file, "new\n")


def test_transfers_with_and_without_verification(bench: Any) -> None:
    rows = [{"time/weights": seconds} for seconds in (90.0, 2.0, 5.0, 2.0, 5.0)]
    assert bench("gpu_vllm").transfer_seconds(rows) == {"transfer_s": 2.0, "verification_s": 3.0}


def test_part_past_its_limit_keeps_results_and_ends_its_runs(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, script = bench("gpu"), tmp_path / "part.py"
    script.write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        'print(\'{"tiny": {"iteration_s": 1}}\', flush=True)\n'
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(gpu, "__file__", str(script))
    assert gpu.run_part("vllm", [], 5.0) == {"tiny": {"iteration_s": 1}, "failed": "not finished after 5 s"}
    child = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 10.0  # a killed process exists until the kernel has removed it
    while is_running(child) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_running(child)


def is_running(process: int) -> bool:
    """Whether a process exists that has not ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_wheels_of_installed_packages_left_out(tmp_path: Path) -> None:
    for name in ("torch-9.0-py3-none-any.whl", "Not_Installed.here-1.0-py3-none-any.whl"):
        (tmp_path / name).touch()
    command = [sys.executable, str(BENCH / "missing_wheels.py"), str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert found == [str(tmp_path / "Not_Installed.here-1.0-py3-none-any.whl")]
