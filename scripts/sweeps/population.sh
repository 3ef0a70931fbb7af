#!/usr/bin/env bash
# A population: four members train in parallel; after each of five generations the runs of better members continue, each
# with one changed value. The same command resumes the sweep.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder="${SWEEP_FOLDER:-outputs/sweeps/population}"
train="${IPPO_TRAIN:-.venv/bin/ippo-train}" # one word or several
report="${IPPO_SWEEP:-.venv/bin/ippo-sweep}"

$train -m resume=auto hydra.sweep.dir="$folder" sweep=ppo_population sweep.max_parallel=2 algorithm=ppo "$@"
$report "$folder"
