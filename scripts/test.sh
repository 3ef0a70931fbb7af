#!/usr/bin/env bash
# From a fresh clone: makes .venv, installs the test extra, and runs every test, or what is given to pytest.
# --quick in place of the first argument: only tests that take no more than a few seconds together with their file.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" "[test]"
if [ "${1:-}" = "--quick" ]; then
  shift
  set -- -m "not slow" "$@"
fi
exec .venv/bin/python -m pytest "$@"
