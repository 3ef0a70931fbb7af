#!/usr/bin/env bash
# From a fresh clone: creates .venv, installs, and runs ippo-train with the arguments. No argument: the default run.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" ""
exec .venv/bin/ippo-train "$@"
