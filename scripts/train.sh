#!/usr/bin/env bash
# From a fresh clone: makes .venv, installs, and runs ippo-train with whatever is given. No argument: the embedded job.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" ""
exec .venv/bin/ippo-train "$@"
