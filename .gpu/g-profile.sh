#!/bin/bash
# Where a round goes: about 130 s; the timeline of triforce alone another 90 s (g-profile.sh trace).
cd "$(dirname "$0")/.." && . .gpu/lib.sh
if [ "$1" = trace ]; then
  step profile-trace 300 $B7 --contexts $LONG --stacks triforce --temperatures 0 --profile --trace "$O/round.json"; gzip -f "$O/round.json"
else
  step profile 300 $B7 --contexts $LONG --stacks autoregressive,triforce,auto --temperatures 0 --profile
fi
