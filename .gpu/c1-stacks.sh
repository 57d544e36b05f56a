#!/bin/bash
# Ablation: retrieval without hierarchy, streaming middle, naive, lookup; 2 prompts, T=0 and 0.6: about 210 s.
cd "$(dirname "$0")/.." && . .gpu/lib.sh
step stacks 400 $B7 --contexts $LONG --stacks autoregressive,triforce,retrieval,streaming,naive,lookup,auto --temperatures 0,0.6 \
  --tokens $TOKENS --prompts 2
