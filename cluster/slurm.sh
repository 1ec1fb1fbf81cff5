#!/usr/bin/env bash
# Slurm: sbatch --nodes=4 cluster/slurm.sh program.py arguments…
# A Ray over the job's nodes for the time of the job; program.py runs on the first one, connected to it.
#SBATCH --job-name=hetero-ray
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
set -euo pipefail

# On every node the same environment with hetero-ray in it, such as: source "$HOME/venv/bin/activate"
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')  # in the environment of this job only

srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --export=ALL \
    ray symmetric-run --address "$head:6379" --min-nodes "$SLURM_JOB_NUM_NODES" -- \
    env RAY_ADDRESS="$head:6379" python "$@"
