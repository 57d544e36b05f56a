#!/usr/bin/env bash
# What the figures on a data-centre GPU are measured with: measure.sh FOLDER-OF-NOVELS FOLDER-FOR-RECORDS STEP...
# The folder holds the novels below. Seconds are estimates for one H200; a first run compiles kernels.
set -euo pipefail
here=$(realpath "$(dirname "$0")") folder=$(realpath "$1") out=$(realpath "$2")
shift 2
export TRIFORCE_CHAT_MODEL=small # the tables of steps that name no model are of this one
cd "$folder"
books="the-scarlet-letter.txt emma.txt treasure-island.txt a-tale-of-two-cities.txt"
shelf="$books bleak-house.txt david-copperfield.txt middlemarch.txt war-and-peace.txt"
unseen="the-scarlet-letter.txt treasure-island.txt"
long=124928 longer=130048

bench() { # NAME option...
    triforce-chat bench ${texts:-$books} --no-cache --repeats 1 --past-end --tokens 256 "${@:2}" --json >"$out/$1.json"
}
# Tables without a penalty, as the paper's have none.
big() { bench "$1" --repetition-penalty 1 --inflate llama-2-7b "${@:2}"; }
far() { big "$1" --offload --contexts $longer --stacks $pair --plain-tokens 8 "${@:2}"; }
pair="autoregressive,triforce"

# Chains beside trees of 40 and 64 tokens, SpecInfer's as 5 and 8 sequences of 8 tokens, on three kinds of text.
short() { # NAME SHAPE option...
    python "$here/short_texts.py" "$out/texts"
    texts="the-scarlet-letter.txt $out/texts/chat.txt $out/texts/reports.txt" bench "$1" --inflate "$2" --same-text \
        --repetition-penalty 1 --tokens 128 --stacks autoregressive,naive "${@:3}"
}
of_sizes() { short "$1" llama-2-7b --contexts 256 --prompts 3 "${@:2}"; }
# Weights in host memory, one answer to a short prompt.
streamed() { # NAME SHAPE option...
    texts=a-tale-of-two-cities.txt bench "$1" --inflate "$2" --repetition-penalty 1 --contexts 512 --prompts 1 \
        --temperatures 0,0.6 --tree-size 64 --stacks autoregressive,naive "${@:3}"
}

# Stacks side by side on what plain decoding writes, by models that were not trained on these novels.
novels="a-tale-of-two-cities.txt bleak-house.txt david-copperfield.txt emma.txt little-women.txt middlemarch.txt
    vanity-fair.txt war-and-peace.txt"
same() { # NAME option...
    triforce-chat bench $novels --no-cache --repeats 1 --same-text --tokens 256 --repetition-penalty 1 \
        --stacks autoregressive,auto,triforce --temperatures 0,0.6,1 "${@:2}" --json >"$out/$1.json"
}

forgets() { # NAME RULES
    triforce-chat evaluate eviction $shelf --draft none --keep 4096 --tokens 1000000 --rules "$2" --json >"$out/$1.json"
}

for step in "$@"; do
    case $step in
    facts) triforce-chat evaluate facts $unseen --seed 0 --json >"$out/facts.json" ;;                # 45 s
    facts-large | facts-medium) triforce-chat evaluate facts $unseen --model "${step#facts-}" --draft none --seed 0 \
        --json >"$out/$step.json" ;; # 80 s each
    perplexity) triforce-chat evaluate perplexity $unseen --draft none --json >"$out/perplexity.json" ;; # 30 s
    questions) triforce-chat evaluate questions --draft none --seed 0 --json >"$out/questions.json" ;; # 45 s
    acceptance) triforce-chat evaluate acceptance $unseen --seed 0 --repetition-penalty 1 --json >"$out/acceptance.json" ;; # 200 s
    acceptance-penalty) triforce-chat evaluate acceptance $unseen --seed 0 --json >"$out/acceptance-penalty.json" ;; # 200 s
    sparsity) triforce-chat evaluate sparsity $unseen --draft none --json >"$out/sparsity.json" ;; # 60 s
    sparsity-large) triforce-chat evaluate sparsity $unseen --model large --draft none --json >"$out/$step.json" ;; # 90 s
    small) bench small --repeats 3 --contexts 4096,8192,32768,$long --stacks autoregressive,auto,triforce,lookup,naive ;; # 110 s
    temperatures) texts=$shelf big temperatures --contexts $long --stacks $pair --temperatures 0,0.2,0.4,0.6,0.8,1,1.2 \
        --prompts 8 --plain-tokens 64 ;; # 300 s
    penalty) bench penalty --inflate llama-2-7b --contexts $long --stacks $pair --temperatures 0,0.6 --prompts 4 \
        --plain-tokens 64 ;; # the preset's, 80 s
    identity) big identity --contexts $long --stacks $pair --temperatures 0 --prompts 4 --tokens 1000 ;; # 150 s
    stacks) big stacks --contexts $long --stacks autoregressive,auto,triforce,retrieval,streaming,naive,lookup \
        --temperatures 0.6 --prompts 2 --plain-tokens 64 ;; # 70 s
    ablations) big ablations --contexts $long --prompts 1 --temperatures 0 --plain-tokens 64 --stacks $pair \
        --one-by-one --vary chunk=1,2,4,8,16,32,64,128,256 \
        --vary budget=512,1024,2048,4096,8192,16384 --vary draft-gamma=1,2,3,4,5,6,8 --vary gamma=1,2,4,6,8,12,16 \
        --vary policy=mean,minmax --vary middle=full,int8 --vary tokens=256,512,1024,2048,4096 ;; # 200 s
    ablations-same) texts=emma.txt big ablations-same --contexts $long --same-text --prompts 1 --temperatures 0.6 --stacks $pair \
        --one-by-one --vary policy=mean,minmax,attention --vary chunk=1,2,4,8,16,32,64 \
        --vary budget=512,1024,2048,4096,8192,16384 --vary draft-gamma=1,2,3,4,6,8 --vary gamma=2,4,6,8,12,16 \
        --vary middle=full,int8 ;; # 100 s
    contexts) big contexts --contexts 4096,8192,16384,32768,65536,$long --stacks autoregressive,auto,triforce \
        --temperatures 0 --prompts 2 --plain-tokens 64 ;; # 150 s
    grouped) bench grouped --repetition-penalty 1 --inflate llama-3.1-8b --contexts $long --stacks $pair \
        --temperatures 0,0.6 --prompts 4 --plain-tokens 64 ;; # 100 s
    profile) big profile --contexts $long --prompts 1 --temperatures 0,0.6 --stacks $pair --profile ;; # 60 s
    offload) far offload --temperatures 0,0.6 --prompts 2 ;; # 250 s
    # All stacks on the same texts; 400 s
    offload-int4) big offload-int4 --offload --contexts $longer --plain-tokens 8 --same-text --temperatures 0.6 \
        --prompts 2 --stacks autoregressive,auto,triforce,triforce-int4 ;;
    offload-int4-profile) big offload-int4-profile --offload --contexts $longer --stacks triforce-int4 \
        --temperatures 0.6 --prompts 1 --profile ;; # 130 s
    card-8b) bench card-8b --repetition-penalty 1 --inflate llama-3.1-8b --device-memory 24GB --contexts 131072 \
        --same-text --stacks autoregressive,triforce,triforce-int4 --temperatures 0.6 --prompts 1 --plain-tokens 8 ;; # 150 s
    offload-budgets) far offload-budgets --temperatures 0.6 --prompts 1 --vary budget=4096,8192,16384,32768 ;; # 250 s
    # Needs host memory for keys and values twice, 34 GB; 70 s
    offload-baselines) same "$step" --inflate llama-3.1-8b --offload --contexts $long --temperatures 0.6 --prompts 1 \
        --plain-tokens 8 --stacks autoregressive,triforce,triforce-int4 --baselines ;;
    # 70 GB: torch pins memory in powers of two, so a few tokens more would take twice as much; 85 s
    offload-baselines-7b) same "$step" --inflate llama-2-7b --offload --contexts 65024 --temperatures 0.6 --prompts 1 \
        --plain-tokens 8 --stacks autoregressive,triforce,triforce-int4 --baselines ;;
    offload-profile) big offload-profile --offload --contexts $longer --stacks triforce --temperatures 0.6 \
        --prompts 1 --profile --trace "$out/offload-trace.json" ;; # 120 s
    # A million tokens of several novels, with ten planted facts: on the card, and with keys and values in host memory.
    # Reading them takes about 130 s; 160 and 180 s
    million) python "$here/million.py" $shelf --tokens 999744 >"$out/million.json" ;;
    million-offload) python "$here/million.py" $shelf --tokens 999744 --offload --plain-tokens 4 \
        --stacks autoregressive,triforce,triforce-int4 >"$out/million-offload.json" ;;
    # What a cache of 4,096 tokens that forgets loses over a million tokens; 100 s each
    eviction) forgets eviction window,streaming,recomputation ;;
    eviction-h2o) forgets eviction-h2o streaming-h2o ;;
    # Keys and values in fewer bits: quality, and plain decoding; 80 and 90 s
    perplexity-kv) for kv in auto int8 fp8 int4; do
        triforce-chat evaluate perplexity $unseen --draft none --reference none --strides 4096 --kv $kv --json \
            >"$out/perplexity-$kv.json"
    done ;;
    kv) for kv in auto int8 fp8 int4; do
        texts=bleak-house.txt big "kv-$kv" --contexts $long --tokens 64 --warmup 8 --temperatures 0 --stacks autoregressive --kv $kv
    done ;;
    card) big card --device-memory 24GB --contexts $longer --stacks $pair --temperatures 0,0.6 --prompts 1 \
        --plain-tokens 8 ;; # 170 s
    four-bits) for shape in llama-3.1-8b llama-2-7b; do
        bench "four-bits-$shape" --repetition-penalty 1 --inflate $shape --dtype stored --device-memory 24GB \
            --contexts 4096,131000 --stacks $pair --temperatures 0,0.6 --prompts 1 --plain-tokens 64
    done ;; # 200 s
    bf16) bench "bf16-4096" --repetition-penalty 1 --inflate llama-3.1-8b --contexts 4096 --stacks $pair \
        --temperatures 0 --prompts 1 --plain-tokens 64 ;; # 40 s
    together) for count in 8 32; do
        texts=bleak-house.txt big "together-$count" --contexts $long --tokens 96 --shared $count \
            --stacks autoregressive,auto --temperatures 0
    done ;; # 150 s
    batches) for batch in 2x57344 6x19456 10x12288; do
        triforce-chat bench $novels the-scarlet-letter.txt treasure-island.txt --model small --no-cache --past-end \
            --repetition-penalty 1 --inflate llama-2-7b --repeats 1 --warmup 64 --tokens 128 --batch $batch \
            --stacks autoregressive,auto,naive,triforce --temperatures 0,0.6 --json >"$out/batch-$batch.json"
    done ;; # 170 s
    parallel) big parallel --tp 2 --contexts $long --stacks $pair --temperatures 0,0.6 --prompts 1 \
        --plain-tokens 64 ;; # two GPUs, 75 s
    parallel-four) big parallel-four --tp 4 --contexts $long --stacks $pair --temperatures 0,0.6 --prompts 1 \
        --plain-tokens 64 ;; # four GPUs, 60 s
    parallel-offload) far parallel-offload --tp 2 --temperatures 0,0.6 --prompts 1 ;; # two GPUs, 130 s
    parallel-offload-13b) bench parallel-offload-13b --repetition-penalty 1 --inflate llama-2-13b --offload --tp 2 \
        --contexts $longer --stacks $pair --temperatures 0,0.6 --prompts 1 --plain-tokens 8 ;; # two GPUs, 180 s
    parallel-offload-four) far parallel-offload-four --tp 4 --temperatures 0,0.6 --prompts 1 ;; # four GPUs, 80 s
    batch) python "$here/batch.py" . --workers 2 --model small >"$out/batch.json" ;; # two GPUs, 180 s
    large | medium) same "$step" --model "$step" --contexts 4096,8192,32768,$long --prompts 2 ;; # 120 s each
    large-draft) same "$step" --model large --draft medium --contexts 32768,$long --prompts 2 ;; # 100 s
    large-7b) same "$step" --model large --draft medium --inflate llama-2-7b --contexts $long --prompts 8 ;; # 470 s
    large-8b) same "$step" --model large --draft medium --inflate llama-3.1-8b --contexts $long --prompts 4 ;; # 180 s
    large-13b) same "$step" --model large --draft medium --inflate llama-2-13b --contexts 65536 --prompts 2 ;; # 135 s
    large-offload) same "$step" --model large --offload --contexts $long --prompts 1 ;; # 150 s
    large-7b-contexts) same "$step" --model large --draft medium --inflate llama-2-7b --contexts 4096,8192,32768 \
        --prompts 2 ;; # 170 s
    trees-short | trees-short-13b) # 280 s, and 420 s for the larger shape
        shape=llama-2-7b
        [ "$step" = trees-short ] || shape=llama-2-13b
        short "$step" $shape --contexts 128,256,512 --prompts 6 --temperatures 0,0.6 --tree-depth 8 \
            --vary tree=chain,sequoia,specinfer --vary tree-size=40,64
        ;;
    trees-sizes) # 120 s
        of_sizes "$step" --temperatures 0.6 --vary tree=sequoia,specinfer --vary tree-size=3,7,15,31,63
        python -m triforce_chat.lab.bench.plot "$out/$step.json" --over tree-size \
            --measures tokens_per_verification,ms_per_token --out "$out/$step.svg"
        ;;
    trees-best) of_sizes "$step" --temperatures 0,0.6 --tree sequoia --vary tree-size=15,31,63 \
        --vary tree-depth=4,6,8,12 ;; # 150 s
    trees-long) texts=a-tale-of-two-cities.txt bench "$step" --repetition-penalty 1 --inflate llama-2-7b --same-text \
        --contexts $long --prompts 1 --temperatures 0.6 --tokens 192 --stacks $pair --tree-size 31 \
        --vary tree=chain,sequoia,auto ;; # 60 s
    trees-auto) texts=anna-karenina.txt bench "$step" --repetition-penalty 1 --inflate llama-2-7b --same-text \
        --contexts $long --prompts 1 --temperatures 0.6 --tokens 512 --plain-tokens 64 --stacks $pair --tree-size 31 \
        --vary tree=chain,auto ;; # 50 s
    trees-offload) far "$step" --same-text --prompts 1 --temperatures 0.6 --tree-size 31 --vary tree=chain,sequoia,auto ;; # 200 s
    weights-13b) streamed "$step" llama-2-13b --gpu-layers 20 --tokens 48 --warmup 24 --plain-tokens 6 \
        --vary tree=chain,sequoia ;; # 75 s
    weights-34b) streamed "$step" codellama-34b --device-memory 24GB --tokens 40 --warmup 12 --plain-tokens 3 \
        --vary tree=chain,sequoia ;; # 150 s
    *)
        echo "no step $step" >&2
        exit 2
        ;;
    esac
done
