#!/bin/bash
# A card of 24 GB: KV of the layers without room goes to the host by itself; about 330 s.
cd "$(dirname "$0")/.." && . .gpu/lib.sh
step card 580 $B7 $CARD --contexts $FAR --warmup 4 --stacks autoregressive,triforce,auto --temperatures ${1:-0.6} --tokens $((TOKENS * 3 / 8))
