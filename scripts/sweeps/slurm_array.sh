#!/usr/bin/env bash
# A SLURM array: five seeds; each task has its own run, and is requeued and resumed separately. After the end (--wait) it
# prints one line with the mean over finished seeds; the exit code is that of the worst task. Arguments are additional
# overrides. To repeat a failed seed: SEEDS=3 and the same command; the newest run of each seed counts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
name="${SWEEP_NAME:-seeds}"
report="${IPPO_SWEEP:-.venv/bin/ippo-sweep}"

mkdir -p outputs
code=0
sbatch --wait --array="${SEEDS:-1-5}" --output="outputs/$name-%a.out" \
  scripts/slurm/train.sbatch algorithm=ppo 'seed=%a' name="$name" "$@" \
  || code=$? # if some tasks fail, print the mean of the others
if [ -d "outputs/$name" ]; then
  $report "outputs/$name" || [ "$code" != 0 ] || code=1
else
  echo "no task started a run; see outputs/$name-*.out" >&2
fi
exit "$code"
