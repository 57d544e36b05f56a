#!/bin/bash
# Output length 256, 1,024 and 4,096, past the end: about 230 s.
cd "$(dirname "$0")/.." && . .gpu/lib.sh
step lengths 450 $B7 --contexts $LONG --stacks autoregressive,triforce --temperatures 0 --past-end --vary tokens=$LENGTHS
