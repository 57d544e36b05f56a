#!/bin/bash
# Budget 512 to 16K, both policies: about 180 s for 2 prompts.
cd "$(dirname "$0")/.." && . .gpu/lib.sh
step budgets 350 $B7 --contexts $LONG --stacks autoregressive,triforce --temperatures 0 --tokens $TOKENS --prompts 2 \
  --vary budget=$BUDGETS --vary policy=mean,minmax
