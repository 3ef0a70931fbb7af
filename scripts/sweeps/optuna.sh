#!/usr/bin/env bash
# A search: Optuna draws learning rates of actors and critics and the entropy bonus, two jobs at a time; jobs that fall
# behind the median are saved and ended. Needs the extra: .venv/bin/pip install -e '.[sweeps]'
# The same line again goes on with what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder="${SWEEP_FOLDER:-outputs/sweeps/optuna}"
train="${IPPO_TRAIN:-.venv/bin/ippo-train}" # of one word or more
report="${IPPO_SWEEP:-.venv/bin/ippo-sweep}"

$train -m resume=auto hydra.sweep.dir="$folder" sweep=ppo_learning_rates sweep.trials=12 sweep.max_parallel=2 \
  algorithm=ppo 'algorithm.entropy_coef=tag(log, interval(1e-4, 3e-2))' evaluation.every=5 "$@"
$report "$folder"
