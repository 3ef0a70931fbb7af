#!/usr/bin/env bash
# From a fresh clone: makes .venv, installs the test extra, and runs every test (or what is given to pytest).
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" "[test]"
exec .venv/bin/python -m pytest "$@"
