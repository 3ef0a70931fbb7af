#!/usr/bin/env bash
# A search: Optuna samples learning rates of actors and critics and the entropy bonus, two jobs at a time; jobs below the
# median are saved and stopped. Needs the extra: .venv/bin/pip install -e '.[sweeps]'
# The same command resumes unfinished jobs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder="${SWEEP_FOLDER:-outputs/sweeps/optuna}"
train="${IPPO_TRAIN:-.venv/bin/ippo-train}" # one word or several
report="${IPPO_SWEEP:-.venv/bin/ippo-sweep}"

$train -m resume=auto hydra.sweep.dir="$folder" sweep=ppo_learning_rates sweep.trials=12 sweep.max_parallel=2 \
  algorithm=ppo 'algorithm.entropy_coef=tag(log, interval(1e-4, 3e-2))' evaluation.every=5 "$@"
$report "$folder"
