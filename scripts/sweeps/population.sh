#!/usr/bin/env bash
# A population: four members train side by side; after each of five generations the better ones' runs are gone on with,
# one value changed each. The same line again goes on where it was.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder="${SWEEP_FOLDER:-outputs/sweeps/population}"
train="${IPPO_TRAIN:-.venv/bin/ippo-train}" # of one word or more
report="${IPPO_SWEEP:-.venv/bin/ippo-sweep}"

$train -m resume=auto hydra.sweep.dir="$folder" sweep=ppo_population sweep.max_parallel=2 algorithm=ppo "$@"
$report "$folder"
