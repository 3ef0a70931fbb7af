#!/usr/bin/env bash
# From a fresh clone: makes .venv, installs the test extra, and runs tests in parallel on up to four cores. Tiers:
#   scripts/test.sh            standard: all but those marked `slow`, and of these the ones marked `core`; under half an
#                              hour on two cores; continuous integration runs it
#   scripts/test.sh --all      every test; about an hour on two cores; before a release, and after changes to training
#   scripts/test.sh --quick    configuration, formulas, types and layers; a minute or two
#   scripts/test.sh --vllm     tests/vllm in an environment with vLLM, which scripts/vllm_environment.sh makes; minutes
#   scripts/test.sh ARGUMENTS  what pytest makes of them, without a tier
if [ "${1:-}" = --vllm ]; then
  shift
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  scripts/vllm_environment.sh
  exec env OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" "${IPPO_VLLM_VENV:-.venv-vllm}/bin/python" -m pytest tests/vllm "$@"
fi
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" "[test]"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # several processes, a thread each
parallel=(-n logical --maxprocesses 4 --dist loadfile)
case "${1:-}" in
  --quick)
    shift
    set -- "${parallel[@]}" tests/formulas tests/rewards tests/tasks tests/config/test_checks.py tests/test_layers.py \
      tests/test_types.py -m "not slow" "$@"
    ;;
  --all)
    shift
    set -- "${parallel[@]}" "$@"
    ;;
  "") set -- "${parallel[@]}" -m "not slow or core" ;;
esac
exec .venv/bin/python -m pytest "$@"
