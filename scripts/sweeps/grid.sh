#!/usr/bin/env bash
# A grid: three learning rates times three seeds, two jobs at a time, and one table with means over the seeds.
# The same command resumes unfinished jobs. Arguments are additional overrides, for a smaller sweep such as
#   scripts/sweeps/grid.sh num_iterations=10 evaluation.every=5
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder="${SWEEP_FOLDER:-outputs/sweeps/grid}"
train="${IPPO_TRAIN:-.venv/bin/ippo-train}" # one word or several
report="${IPPO_SWEEP:-.venv/bin/ippo-sweep}"

$train -m resume=auto hydra.sweep.dir="$folder" sweep.max_parallel=2 \
  actor.learning_rate=1e-4,3.5e-4,1e-3 'seed=range(1,4)' "$@"
$report "$folder"
