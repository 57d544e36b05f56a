#!/bin/bash
# In order of importance, until a limit of seconds (default 570, below the 600 of one command) leaves no room: queue.sh [SECONDS] [STEP...]
# Steps by name, with arguments after a colon; done ones (in $O/queue.done) are passed over, so a later call goes on.
cd "$(dirname "$0")/.." && . .gpu/lib.sh
limit=${1:-570}; shift
all="a-quick:80 b-short:380 g-profile:130 d-contexts:180 c1-stacks:210 b-temperatures.0:420 b-temperatures.4:420 e-gqa:160 f-small:90 h-offload.0:320 j-card:330 c4-gammas:200 c3-budgets:180 c2-chunks:130 c5-lengths:230 h-offload.profile:130 h-offload.0.6:320 t-tests:120"
began=$(date +%s)
for item in ${*:-$all}; do
  name=${item%%:*}; need=${item##*:}; [ "$need" = "$item" ] && need=0
  grep -qx "$name" "$O/queue.done" 2>/dev/null && continue
  left=$((limit - $(date +%s) + began))
  if [ $left -lt $need ]; then echo "no time for $name ($need s of $left)"; continue; fi
  script=${name%%.*}; argument=${name#*.}; [ "$argument" = "$name" ] && argument=
  timeout -s INT -k 30 $left bash .gpu/$script.sh $argument && echo "$name" >> "$O/queue.done"
done
cat "$O/queue.log"
