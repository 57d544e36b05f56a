#!/bin/bash
# The temperature table, 8 prompts in two parts of about 420 s each; b-temperatures.sh 0, then 4 (the first four prompts alone are a table already).
cd "$(dirname "$0")/.." && . .gpu/lib.sh
first=${1:-0}
step "temperatures-$first" ${LIMIT:-580} $B7 --contexts $LONG --stacks autoregressive,triforce --temperatures 0,0.2,0.4,0.6,0.8,1.0,1.2 \
  --tokens $TOKENS --prompts ${PROMPTS:-4} --skip-prompts "$first"
