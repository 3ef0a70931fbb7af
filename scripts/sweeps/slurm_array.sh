#!/usr/bin/env bash
# A SLURM array: five seeds, each task a job with a run of its own that is requeued and resumed by itself. When it has
# ended (--wait), one line with the mean over the seeds. What is typed behind it are more overrides.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
name="${SWEEP_NAME:-seeds}"
report="${IPPO_SWEEP:-.venv/bin/ippo-sweep}"

sbatch --wait --array=1-5 scripts/slurm/train.sbatch algorithm=ppo 'seed=%a' name="$name" "$@"
$report "outputs/$name"
