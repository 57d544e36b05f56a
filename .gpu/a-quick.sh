#!/bin/bash
# Headline, one novel: about 80 s (load and inflate 35, prefill 20, plain 4, triforce 2, graphs up to 20).
cd "$(dirname "$0")/.." && . .gpu/lib.sh
step quick 240 $B7 --contexts $LONG --stacks autoregressive,triforce --temperatures 0 --tokens $((TOKENS / 2))
