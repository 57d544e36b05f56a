#!/bin/bash
# The default model itself: about 90 s.
cd "$(dirname "$0")/.." && . .gpu/lib.sh
step small 240 --contexts $SMALL --stacks autoregressive,triforce,auto,lookup --temperatures 0 --tokens $TOKENS
