#!/usr/bin/env bash
# From a fresh clone: creates .venv, installs the test extra, and runs all tests in parallel on up to four cores; with
# arguments, runs pytest with them. --quick as the first argument: only tests of configuration, formulas, types and layers.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" "[test]"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # several processes, one thread each
parallel=(-n logical --maxprocesses 4 --dist loadfile)
if [ "${1:-}" = "--quick" ]; then
  shift
  set -- "${parallel[@]}" tests/formulas tests/rewards tests/tasks tests/config/test_checks.py tests/test_layers.py \
    tests/test_types.py -m "not slow" "$@"
elif [ "$#" = 0 ]; then
  set -- "${parallel[@]}"
fi
exec .venv/bin/python -m pytest "$@"
