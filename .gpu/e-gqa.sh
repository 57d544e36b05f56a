#!/bin/bash
# The 8B shape with 8 KV heads, 2 prompts, T=0 and 0.6: about 160 s.
cd "$(dirname "$0")/.." && . .gpu/lib.sh
step gqa 360 $B8 --contexts $LONG --stacks autoregressive,triforce,auto --temperatures 0,0.6 --tokens $TOKENS --prompts 2
