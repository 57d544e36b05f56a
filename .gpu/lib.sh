# Sourced by every script of this folder. Variables:
#   O       where records go (default /tmp/out)      BOOKS   texts (default /tmp/books/*.txt)
#   TOKENS  of an answer (default 256)               PY      python3
#   TINY=1  try the flags on a CPU: tiny model, 600 tokens of context, 8 tokens of answer
O=${O:-/tmp/out}; PY=${PY:-python3}; TOKENS=${TOKENS:-256}
BOOKS=${BOOKS:-$(ls /tmp/books/*.txt)}
BOOK=$(ls -S $BOOKS | head -n 1)  # the longest, for one prompt: to turn all novels into tokens takes 10 s
LONG=${LONG:-124928}; FAR=${FAR:-130048}
B7="--inflate llama-2-7b"; B8="--inflate llama-3.1-8b"; B13="--inflate llama-2-13b"; CARD="--device-memory 24GB"
CURVE=4096,8192,16384,32768,65536,98304,124928; SMALL=8192,32768,124928; LENGTHS=256,1024,4096
BUDGETS=512,1024,2048,4096,8192,16384
COMMON="--repeats 1 --no-cache"
if [ -n "$TINY" ]; then
  LONG=600; FAR=700; TOKENS=8; CURVE=300,600; SMALL=300; LENGTHS=4,6; BUDGETS=128,256; B7=; B8=; B13=; CARD=
  COMMON="--repeats 1 --no-cache --warmup 2 --device cpu --model ${TINY_MODEL:?} --draft ${TINY_DRAFT:?}"
fi
mkdir -p "$O"

# step NAME SECONDS FLAGS...: one bench; what is measured by then stands when its time is up
step() {
  local name=$1 limit=$2 began code books=$BOOK; shift 2
  [[ " $* " = *" --prompts "* ]] && books=$BOOKS
  began=$(date +%s)
  timeout -s INT -k 30 "$limit" $PY -m triforce_chat bench $books $COMMON "$@" --json --jsonl \
    > "$O/$name.jsonl" 2> "$O/$name.err"
  code=$?
  tail -n 1 "$O/$name.jsonl" | grep -q '"rows"' && tail -n 1 "$O/$name.jsonl" > "$O/$name.json"
  echo "$(date +%T) $name: $(($(date +%s) - began)) s, exit $code" | tee -a "$O/queue.log"
  [ $code = 0 ] || tail -n 3 "$O/$name.err"
  $PY - "$O/$name.json" <<'END' 2>/dev/null
import json, sys
record = json.load(open(sys.argv[1]))
print(f"  loaded in {record['load_s']:.0f} s, offloaded {record['offloaded']}")
for row in record["rows"]:
    likely = row["speedup_interval"]
    print("  ", row["context"], row["contender"], row["varied"] or "", f"T={row['temperature']:g}",
          f"{row['ms_per_token']:.2f} ms", f"{row['speedup'] or 0:.2f}x",
          f"({likely[0]:.2f}-{likely[1]:.2f})" if likely else "",
          {k: v and round(v, 3) for k, v in row["acceptance"].items()}, f"{row['tokens_per_round']:.2f} tokens/round",
          f"prefill {row['prefill_tokens_per_s']:.0f}/s", f"peak {row['peak_bytes']/1e9:.1f} GB", "same" if row["same_tokens"] else row["same_tokens"])
for one in record["profiles"]:
    print("  ", one["case"], one["context"], f"{one['ms_per_round']:.2f} ms/round (traced {one['traced_ms_per_round']:.2f})",
          f"idle {one['idle_ms']:.2f}", f"floor {one['floor_total_ms']:.2f}", f"{one['bandwidth']/1e12:.2f} TB/s", one["overlap"])
    for level, kinds in one["ms"].items():
        print("     ", level, f"x{one['forwards'].get(level, 0):.2f} floor {one['floor_ms'].get(level, 0):.2f}", {k: round(v, 3) for k, v in kinds.items()})
    for kernel in one["heaviest"][:14]:
        print("       ", f"{kernel['ms']:.3f} ms x{kernel['runs']:.0f}", kernel["level"], kernel["group"], kernel["name"][:90])
END
  return $code
}
