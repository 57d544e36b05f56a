#!/bin/bash
# Two GPUs. i-two.sh chip: about 150 s; offload: about 260 s; 13b: about 330 s; four (x4 machine): about 150 s.
cd "$(dirname "$0")/.." && . .gpu/lib.sh
two="--tp ${TP:-2}"
case ${1:-chip} in
  chip) step two-chip 400 $B7 $two --contexts $LONG --stacks autoregressive,triforce,auto --temperatures 0,0.6 --tokens $TOKENS ;;
  four) step four-chip 400 $B7 --tp ${TP:-4} --contexts $LONG --stacks autoregressive,triforce,auto --temperatures 0 --tokens $TOKENS ;;
  offload) step two-offload 580 $B7 $two --offload --contexts $FAR --warmup 4 --stacks autoregressive,triforce,auto --temperatures 0,0.6 --tokens $((TOKENS / 4)) ;;
  13b) step two-offload-13b 580 $B13 $two --offload --contexts $FAR --warmup 4 --stacks autoregressive,triforce --temperatures 0,0.6 --tokens $((TOKENS / 4)) ;;
  profile) step two-profile 300 $B7 $two --contexts $LONG --stacks triforce --temperatures 0 --profile ;;
esac
