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
# To Debian its own name is 127.0.1.1; then no node would take itself for the head. This script runs there.
case $(getent hosts "$head") in 127.* | ::1*) head=$(hostname -I | cut -d' ' -f1) ;; esac
export RAY_ADDRESS="$head:6379" RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')  # in the environment of this job only
# A dead node is noticed after about 2 s; Ray's own settings take 16 s. Not by --system-config, which only a
# head takes, while symmetric-run hands its options to every node.
export RAY_health_check_initial_delay_ms=0 RAY_health_check_period_ms=500
export RAY_health_check_timeout_ms=1000 RAY_health_check_failure_threshold=3
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=120  # the first start from a shared file system is slow

# The head ends first, and nobody tells the others: left alone they wait a minute for it to come back. Not so on
# the head, where symmetric-run would give up while it stops the head, and lose the program's exit status.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --export=ALL \
    bash -c '[ "$SLURM_PROCID" = 0 ] || export RAY_gcs_rpc_server_reconnect_timeout_s=5; exec "$@"' - \
    ray symmetric-run --address "$RAY_ADDRESS" --min-nodes "$SLURM_JOB_NUM_NODES" -- python "$@"
