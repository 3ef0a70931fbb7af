#!/usr/bin/env bash
# From a fresh clone: creates .venv, installs the test extra, and runs the whole fault matrix (hours): random kills, stops
# and signals at every step, flipped bits; --soak MINUTES: a run with a kill every minute. For a shorter campaign: --kills N,
# --flips N, or names of parts (--help lists them). --folder DIR keeps finished cases, and --minutes N limits the time; the
# next campaign continues. Results are written into docs/results.md.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" "[test]"
export OMP_NUM_THREADS=1
exec .venv/bin/python tests/faults/campaign.py "$@"
