#!/bin/bash
# GPU tests: one GPU about 90 s; on two GPUs test_gpus as well, another 150 s.
cd "$(dirname "$0")/.." && . .gpu/lib.sh
began=$(date +%s); timeout 580 $PY -m pytest -q tests/test_gpu.py tests/test_gpus.py 2>&1 | tail -n 15 | tee "$O/tests.txt"
echo "$(date +%T) tests: $(($(date +%s) - began)) s" | tee -a "$O/queue.log"
