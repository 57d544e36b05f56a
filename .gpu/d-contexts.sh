#!/bin/bash
# Curve over the context, with auto: about 180 s.
cd "$(dirname "$0")/.." && . .gpu/lib.sh
step contexts 400 $B7 --contexts $CURVE --stacks autoregressive,triforce,auto --temperatures 0 --tokens $((TOKENS / 2))
