#!/bin/bash
# Chunk 1 to 256: about 130 s for 2 prompts.
cd "$(dirname "$0")/.." && . .gpu/lib.sh
step chunks 300 $B7 --contexts $LONG --stacks autoregressive,triforce --temperatures 0 --tokens $TOKENS --prompts 2 --vary chunk=1,2,4,8,16,32,64,128,256 ${TINY:+--budget 400}
