#!/usr/bin/env bash
# Runs an experiment on this machine, on a mesh of 8 CPU devices.
#
#   bash launch/local.sh                                the main job
#   bash launch/local.sh --set steps=20                 the main job, changed
#   bash launch/local.sh experiments/NAME.py [flags]    another experiment
#
# The first call makes .venv and installs into it; later calls install nothing.
# The work directory is runs/NAME unless --workdir says otherwise; a used one is
# resumed.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
experiment="experiments/arithmetic_tools_ppo.py"
if [[ $# -gt 0 && "$1" != -* ]]; then
  experiment="$1"
  shift
fi
name="$(basename "$experiment" .py)"

bash launch/setup.sh

export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"
export XLA_FLAGS="${XLA_FLAGS:---xla_force_host_platform_device_count=8}"
# XLA's CPU backend maps its temporaries afresh on every call; keeping freed
# memory in the process saves a tenth of an update's time in page faults.
export MALLOC_ARENA_MAX="${MALLOC_ARENA_MAX:-1}"
export MALLOC_MMAP_MAX_="${MALLOC_MMAP_MAX_:-0}"
export MALLOC_TRIM_THRESHOLD_="${MALLOC_TRIM_THRESHOLD_:-4000000000}"
exec .venv/bin/python -m rl_tpu train \
  "--experiment=$experiment" "--workdir=runs/$name" "$@"
