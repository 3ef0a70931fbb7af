#!/usr/bin/env bash
# From a fresh clone: makes .venv, installs the test extra, and runs the whole fault matrix (hours): random kills, stops and
# signals at every step, flipped bits; --soak MINUTES: a run that is killed every minute. --kills N, --flips N, or parts by
# their names, for less; --help lists them. --folder DIR keeps what was done, and --minutes N ends this piece: the next one
# goes on. What came of it is written into docs/reliability.md.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" "[test]"
export OMP_NUM_THREADS=1
exec .venv/bin/python tests/faults/campaign.py "$@"
