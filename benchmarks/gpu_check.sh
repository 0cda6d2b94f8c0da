#!/usr/bin/env bash
# One prepared check for a machine with one CUDA GPU and this package installed; under 8 minutes, one JSON.
#   bash benchmarks/gpu_check.sh [OUT.json]            on the GPU
#   DEVICE=cpu bash benchmarks/gpu_check.sh OUT.json   the same on a tiny geometry, as its own test
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1
exec "${PYTHON:-python}" benchmarks/gpu_check.py --device "${DEVICE:-cuda}" --out "${1:-benchmarks/results/gpu_check.json}"
