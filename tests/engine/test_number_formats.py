"""The number format that is fast on a machine, from its devices and the instructions of its processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from ippo_cli.engine.number_formats import default_dtype, has_bf16_instructions, has_gpu, measure_bf16_slowdown

AVX2 = "processor\t: 0\nmodel name\t: Some bf16 processor\nflags\t\t: fpu sse avx avx2 fma\n"


def write_machine(root: Path, cpuinfo: str | None, *devices: str) -> Path:
    for folder in ("proc", "dev"):
        (root / folder).mkdir()
    if cpuinfo is not None:
        (root / "proc" / "cpuinfo").write_text(cpuinfo)
    for name in devices:
        (root / "dev" / name).touch()
    return root


@pytest.mark.parametrize(
    ("cpuinfo", "devices", "dtype"),
    [
        (AVX2, (), "fp32"),
        (AVX2.replace("avx2", "avx2 avx512f avx512_vnni"), (), "fp32"),
        (AVX2.replace("avx2", "avx2 avx512_bf16"), (), "bf16"),
        (AVX2.replace("avx2", "amx_tile amx_bf16"), (), "bf16"),
        ("processor\t: 0\nFeatures\t: fp asimd sve bf16 i8mm\n", (), "bf16"),
        ("processor\t: 0\nFeatures\t: fp asimd sve i8mm\n", (), "fp32"),
        (None, (), "fp32"),
        (AVX2, ("nvidiactl",), "bf16"),
        (AVX2, ("kfd",), "bf16"),
    ],
)
def test_default_dtype(
    cpuinfo: str | None, devices: tuple[str, ...], dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    root = write_machine(tmp_path, cpuinfo, *devices)
    assert default_dtype(root=root) == dtype
    assert default_dtype(8, root) == "bf16"  # GPUs of `plan=`


def test_hidden_gpus_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_machine(tmp_path, AVX2, "nvidiactl")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert has_gpu(root)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not has_gpu(root)
    assert default_dtype(root=root) == "fp32"


@pytest.mark.skipif(has_gpu(), reason="measures the processor")
def test_measured_slowdown_agrees_with_the_instructions() -> None:
    assert (measure_bf16_slowdown() < 1.5) == has_bf16_instructions()
