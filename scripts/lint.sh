#!/usr/bin/env bash
# From a fresh clone: creates .venv, installs the dev extra, and runs ruff and pyright; --fix applies the fixes of ruff.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" "[dev]"
if [ "${1:-}" = "--fix" ]; then
  .venv/bin/ruff check --fix .
  .venv/bin/ruff format .
else
  .venv/bin/ruff check .
  .venv/bin/ruff format --check .
fi
.venv/bin/pyright
exec .venv/bin/pyright -p scripts  # names and parameters alone
