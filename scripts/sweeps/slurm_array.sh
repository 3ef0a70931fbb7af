#!/usr/bin/env bash
# A SLURM array: five seeds, each task a job with a run of its own that is requeued and resumed by itself. When it has
# ended (--wait), one line with the mean over the seeds that are done; the exit code is that of the worst task. What is
# typed behind it are more overrides. Seeds that failed: SEEDS=3 and the same line; of each the newest run counts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
name="${SWEEP_NAME:-seeds}"
report="${IPPO_SWEEP:-.venv/bin/ippo-sweep}"

mkdir -p outputs
code=0
sbatch --wait --array="${SEEDS:-1-5}" --output="outputs/$name-%a.out" \
  scripts/slurm/train.sbatch algorithm=ppo 'seed=%a' name="$name" "$@" \
  || code=$? # of some the others' mean is told
if [ -d "outputs/$name" ]; then
  $report "outputs/$name" || [ "$code" != 0 ] || code=1
else
  echo "no task has begun a run; why is in outputs/$name-*.out" >&2
fi
exit "$code"
