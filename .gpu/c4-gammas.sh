#!/bin/bash
# Grid of gamma (gamma2 of the paper) and draft-gamma (gamma1): 30 cases, about 200 s.
cd "$(dirname "$0")/.." && . .gpu/lib.sh
step gammas 400 $B7 --contexts $LONG --stacks autoregressive,triforce --temperatures 0 --tokens $((TOKENS / 2)) \
  --vary gamma=2,4,6,8,12,16 --vary draft-gamma=1,2,4,6,8
