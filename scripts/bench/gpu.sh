#!/usr/bin/env bash
# Checks and measures training on a machine with a GPU and no internet, in under ten minutes.
#
#   scripts/bench/gpu.sh wheels DIR [--vllm]   on a machine with internet: download the packages that a machine with
#                                        torch, transformers and peft lacks (PYTHON_VERSION: Python of that machine, 3.12;
#                                        --vllm: vLLM and all that it needs, several GB; VLLM: its version)
#   scripts/bench/gpu.sh run DIR OUT     on the GPU machine: use them, write OUT/gpu.json and OUT/gpu.md, and print them
#   scripts/bench/gpu.sh run DIR OUT --device cpu --shapes tiny --tokens 16 --rows 8      a trial without a GPU
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
python="${PYTHON:-python3}"
# The ranges are those of pyproject.toml.
pure=('antlr4-python3-runtime==4.9.3' 'hydra-core>=1.3.8,<1.4' 'omegaconf>=2.3.1,<2.4' 'deepspeed>=0.19.5,<0.20' hjson dill)
others=(py-cpuinfo msgpack 'datasets>=4.2,<6' 'multiprocess' xxhash 'tensorboard>=2.18,<3' 'rich>=13.7,<16' pydantic \
  pydantic-core annotated-types typing-inspection 'jaxtyping>=0.3,<0.4' wadler-lindig)
download() {
  "$python" -m pip download --quiet --only-binary=:all: --python-version "${PYTHON_VERSION:-3.12}" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 "$@"
}
case "${1:-}" in
wheels)
  mkdir -p "$2"
  "$python" -m pip wheel --quiet --no-deps --wheel-dir "$2" "${pure[@]}" "$root" # a run records its version
  download --no-deps --dest "$2" "${others[@]}"
  if [ "${3:-}" = --vllm ]; then download --dest "$2/vllm" "${VLLM:-vllm>=0.30,<0.34}"; fi
  ;;
run)
  site="$(mktemp -d)"
  trap 'rm -rf "$site"' EXIT
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$2"/*.whl
  if [ -d "$2/vllm" ]; then # only what the machine lacks: it has its own torch
    PYTHONPATH="$site" "$python" "$root/scripts/bench/missing_wheels.py" "$2/vllm" |
      xargs -r "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site"
  fi
  export PYTHONPATH="$root/src:$site${PYTHONPATH:+:$PYTHONPATH}" TRANSFORMERS_OFFLINE=1 HF_HUB_OFFLINE=1
  "$python" "$root/scripts/bench/gpu.py" "${@:3}"
  ;;
*)
  sed -n '2,9p' "${BASH_SOURCE[0]}" >&2
  exit 2
  ;;
esac
