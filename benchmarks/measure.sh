#!/usr/bin/env bash
# What the figures on a data-centre GPU are measured with: measure.sh FOLDER-OF-NOVELS FOLDER-FOR-RECORDS STEP...
# The folder holds the four novels below as .txt. Seconds are estimates for one H200; a first run compiles kernels.
set -euo pipefail
novels=$(realpath "$1") out=$(realpath "$2")
shift 2
cd "$novels"
books="the-scarlet-letter.txt emma.txt treasure-island.txt a-tale-of-two-cities.txt"
unseen="the-scarlet-letter.txt treasure-island.txt"
long=124928 longer=130048

bench() { # NAME option...
    triforce-chat bench $books --no-cache --repeats 1 --past-end --tokens 256 "${@:2}" --json >"$out/$1.json"
}
# The tables have no penalty, as the paper's have none.
big() { bench "$1" --repetition-penalty 1 --inflate llama-2-7b "${@:2}"; }
one() { big "$1" --contexts $long --prompts 1 --temperatures 0 --plain-tokens 64 "${@:2}"; }
pair="autoregressive,triforce"

for step in "$@"; do
    case $step in
    facts) triforce-chat evaluate facts $unseen --seed 0 --json >"$out/facts.json" ;;                # 45 s
    perplexity) triforce-chat evaluate perplexity $unseen --draft none --json >"$out/perplexity.json" ;; # 30 s
    questions) triforce-chat evaluate questions --draft none --seed 0 --json >"$out/questions.json" ;; # 45 s
    acceptance) triforce-chat evaluate acceptance $unseen --seed 0 --repetition-penalty 1 --json >"$out/acceptance.json" ;; # 200 s
    acceptance-penalty) triforce-chat evaluate acceptance $unseen --seed 0 --json >"$out/acceptance-penalty.json" ;; # 200 s
    small) bench small --repeats 3 --contexts 4096,8192,32768,$long --stacks autoregressive,auto,triforce,lookup,naive ;; # 110 s
    temperatures) big temperatures --contexts $long --stacks $pair --temperatures 0,0.2,0.4,0.6,0.8,1,1.2 \
        --prompts 8 --plain-tokens 64 ;; # 500 s
    stacks) one stacks --stacks autoregressive,auto,triforce,retrieval,streaming,naive,lookup ;; # 65 s
    ablations) one ablations --stacks $pair --one-by-one --vary chunk=1,2,4,8,16,32,64,128,256 \
        --vary budget=512,1024,2048,4096,8192,16384 --vary draft-gamma=1,2,3,4,5,6,8 --vary gamma=1,2,4,6,8,12,16 \
        --vary policy=mean,minmax --vary tokens=256,512,1024,2048,4096 ;; # 230 s
    gammas) one gammas --stacks $pair --vary gamma=4,6,8,12,16 --vary draft-gamma=1,2,3,5 ;; # 105 s
    contexts) big contexts --contexts 4096,8192,16384,32768,65536,$long --stacks autoregressive,auto,triforce \
        --temperatures 0 --prompts 2 --plain-tokens 64 ;; # 220 s
    grouped) bench grouped --repetition-penalty 1 --inflate llama-3.1-8b --contexts $long --stacks $pair \
        --temperatures 0,0.6 --prompts 4 --plain-tokens 64 ;; # 125 s
    profile) one profile --stacks $pair --profile --trace "$out/profile-trace.json" ;; # 55 s
    offload) big offload --offload --contexts $longer --stacks $pair --temperatures 0,0.6 --prompts 1 \
        --plain-tokens 12 ;; # 215 s
    offload-profile) big offload-profile --offload --contexts $longer --stacks $pair --temperatures 0 --warmup 2 \
        --profile --trace "$out/offload-trace.json" ;; # 170 s
    card) big card --device-memory 24GB --contexts $longer --stacks $pair --temperatures 0 --prompts 1 \
        --plain-tokens 12 ;; # 170 s
    parallel) one parallel --tp 2 --stacks $pair ;; # two GPUs, 65 s
    parallel-offload) big parallel-offload --tp 2 --offload --contexts $longer --stacks $pair --temperatures 0 \
        --prompts 1 --plain-tokens 12 ;; # two GPUs, 120 s
    *)
        echo "no step $step" >&2
        exit 2
        ;;
    esac
done
