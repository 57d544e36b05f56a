#!/usr/bin/env bash
# What the figures on a data-centre GPU are measured with: measure.sh FOLDER-OF-NOVELS FOLDER-FOR-RECORDS STEP...
# The folder holds the novels below. Seconds are estimates for one H200; a first run compiles kernels.
set -euo pipefail
novels=$(realpath "$1") out=$(realpath "$2")
shift 2
cd "$novels"
# None of these was in a training of large and medium.
unseen="a-tale-of-two-cities.txt bleak-house.txt david-copperfield.txt emma.txt little-women.txt middlemarch.txt
    vanity-fair.txt war-and-peace.txt"
long=124928 longer=130048 pair="autoregressive,triforce" usual="autoregressive,auto,triforce"

# The tables of speed: what plain decoding writes without a penalty is decoded by every stack.
same() { # NAME option...
    triforce-chat bench $unseen --no-cache --repeats 1 --same-text --tokens 256 --repetition-penalty 1 "${@:2}" --json >"$out/$1.json"
}
shape() { same "$1" --model large --inflate "${@:2}"; }
heats="--temperatures 0,0.6,1"

# The older tables, of the small model and its inflated shapes.
books="the-scarlet-letter.txt emma.txt treasure-island.txt a-tale-of-two-cities.txt"
scenes="the-scarlet-letter.txt treasure-island.txt"
bench() {
    triforce-chat bench $books --model small --no-cache --repeats 1 --past-end --tokens 256 "${@:2}" --json >"$out/$1.json"
}
big() { bench "$1" --repetition-penalty 1 --inflate llama-2-7b "${@:2}"; }
far() { big "$1" --offload --contexts $longer --stacks $pair --plain-tokens 8 "${@:2}"; }

for step in "$@"; do
    case $step in
    7b) shape h200-7b llama-2-7b --contexts $long --stacks $usual $heats --prompts 8 ;; # 450 s
    8b) shape h200-8b llama-3.1-8b --contexts $long --stacks $usual $heats --prompts 8 ;; # 330 s
    13b) shape h200-13b llama-2-13b --contexts 65536 --stacks $usual $heats --prompts 2 ;; # 90 s
    7b-contexts) shape h200-7b-contexts llama-2-7b --contexts 4096,8192,32768 --stacks $usual $heats ;; # 100 s
    8b-contexts) shape h200-8b-contexts llama-3.1-8b --contexts 4096,8192,32768 --stacks $usual $heats ;; # 90 s
    7b-stacks) shape h200-7b-stacks llama-2-7b --contexts $long --prompts 2 --temperatures 0.6 \
        --stacks autoregressive,auto,triforce,retrieval,streaming,naive,lookup ;; # 90 s
    7b-offload) shape h200-7b-offload llama-2-7b --offload --contexts $longer --stacks $usual --temperatures 0.6 \
        --tokens 128 ;; # 90 s
    large | medium | small) same "h200-$step" --model "$step" --contexts 4096,8192,32768,$long --stacks $usual $heats ;; # 100 s each
    comprehension) for model in large medium; do
        for context in 8192 32768 $long; do
            triforce-chat evaluate comprehension $unseen --model $model --draft none --contexts $context --json \
                >"$out/h200-comprehension-$model-$context.json"
        done
    done ;; # 80 s each
    facts) triforce-chat evaluate facts $scenes --model small --seed 0 --json >"$out/facts.json" ;; # 45 s
    perplexity) triforce-chat evaluate perplexity $scenes --model small --draft none --json >"$out/perplexity.json" ;; # 30 s
    questions) triforce-chat evaluate questions --model small --draft none --seed 0 --json >"$out/questions.json" ;; # 45 s
    acceptance) triforce-chat evaluate acceptance $scenes --model small --seed 0 --repetition-penalty 1 --json \
        >"$out/acceptance.json" ;; # 200 s
    acceptance-penalty) triforce-chat evaluate acceptance $scenes --model small --seed 0 --json \
        >"$out/acceptance-penalty.json" ;; # 200 s
    identity) big identity --contexts $long --stacks $pair --temperatures 0 --prompts 4 --tokens 1000 ;; # 150 s
    ablations) big ablations --contexts $long --prompts 1 --temperatures 0 --plain-tokens 64 --stacks $pair \
        --one-by-one --vary chunk=1,2,4,8,16,32,64,128,256 \
        --vary budget=512,1024,2048,4096,8192,16384 --vary draft-gamma=1,2,3,4,5,6,8 --vary gamma=1,2,4,6,8,12,16 \
        --vary policy=mean,minmax --vary middle=full,int8 --vary tokens=256,512,1024,2048,4096 ;; # 200 s
    profile) big profile --contexts $long --prompts 1 --temperatures 0,0.6 --stacks $pair --profile ;; # 60 s
    offload) far offload --temperatures 0,0.6 --prompts 2 ;; # 250 s
    offload-budgets) far offload-budgets --temperatures 0.6 --prompts 1 --vary budget=4096,8192,16384,32768 ;; # 250 s
    offload-profile) big offload-profile --offload --contexts $longer --stacks triforce --temperatures 0.6 \
        --prompts 1 --profile --trace "$out/offload-trace.json" ;; # 120 s
    card) big card --device-memory 24GB --contexts $longer --stacks $pair --temperatures 0,0.6 --prompts 1 \
        --plain-tokens 8 ;; # 170 s
    parallel) big parallel --tp 2 --contexts $long --stacks $pair --temperatures 0,0.6 --prompts 1 \
        --plain-tokens 64 ;; # two GPUs, 75 s
    parallel-four) big parallel-four --tp 4 --contexts $long --stacks $pair --temperatures 0,0.6 --prompts 1 \
        --plain-tokens 64 ;; # four GPUs, 60 s
    parallel-offload) far parallel-offload --tp 2 --temperatures 0,0.6 --prompts 1 ;; # two GPUs, 130 s
    parallel-offload-13b) bench parallel-offload-13b --repetition-penalty 1 --inflate llama-2-13b --offload --tp 2 \
        --contexts $longer --stacks $pair --temperatures 0,0.6 --prompts 1 --plain-tokens 8 ;; # two GPUs, 180 s
    parallel-offload-four) far parallel-offload-four --tp 4 --temperatures 0,0.6 --prompts 1 ;; # four GPUs, 80 s
    *)
        echo "no step $step" >&2
        exit 2
        ;;
    esac
done
