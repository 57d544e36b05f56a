#!/bin/bash
# T=0 and 0.6 alone, with auto, 8 prompts: about 380 s (35 + 8 x (20 + 2 x 11)).
cd "$(dirname "$0")/.." && . .gpu/lib.sh
step temperatures-short 580 $B7 --contexts $LONG --stacks autoregressive,triforce,auto --temperatures 0,0.6 --tokens $TOKENS --prompts ${PROMPTS:-8}
