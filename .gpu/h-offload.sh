#!/bin/bash
# KV in host memory (68 GB pinned), one GPU: h-offload.sh 0, then 0.6; about 320 s each (load 35, pinning 40, prefill 35, plain 100 tokens 1.25 s each, triforce 15); h-offload.sh profile 130 s.
cd "$(dirname "$0")/.." && . .gpu/lib.sh
heat=${1:-0}; flags="$B7 --offload --contexts $FAR --warmup 4"
if [ "$heat" = profile ]; then
  step offload-profile 300 $flags --stacks triforce --temperatures 0 --profile --trace "$O/offload-round.json"; gzip -f "$O/offload-round.json"
else
  step "offload-$heat" 580 $flags --stacks autoregressive,triforce,auto --temperatures "$heat" --tokens $((TOKENS * 3 / 8))
fi
