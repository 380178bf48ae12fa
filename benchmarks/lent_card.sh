#!/usr/bin/env bash
# A card that is lent for minutes, by a machine that reaches no index: docs/benchmarks/on_a_card.md.
#
#   here    lent_card.sh pack TOOLS GGUF FOLDER    pieces to send, in FOLDER/p, and FOLDER/src.tgz
#   there   lent_card.sh start                     unpack, and run what is queued, in its own session
#           lent_card.sh queue OPTIONS             one more run of benchmarks.gpu_session
#           lent_card.sh wait SECONDS [RUNS]       until so many runs have ended; the reports to $OUT;
#                                                  fails where a run has failed, or died
#           lent_card.sh stop                      nothing more is run
#
# Pieces a.* (torch and what is needed beside it, the model) are put into HOLD/in there, v.* (vLLM's
# environment) into HOLD/vin, src.tgz and the other files of FOLDER into HOLD.
set -euo pipefail
HOLD=${HOLD:-/tmp/hold}
PIECE=${PIECE:-50M}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

pack() {
  local tools=$1 gguf=$2 folder=$3 kind
  rm -rf "$folder" && mkdir -p "$folder/p"
  # shellcheck disable=SC2046
  bash "$tools/gpu_bundle.sh" "$folder/a" $(cd "$here/.." && python -m benchmarks.lent_card_wheels) >/dev/null
  # shellcheck disable=SC2046
  bash "$tools/gpu_bundle.sh" "$folder/v" vllm==0.26.0 gguf==0.19.0 -r "$tools/vllm_wheels.txt" >/dev/null
  for kind in a v; do
    cat "$folder/$kind"/part.* | split -b "$PIECE" -d - "$folder/p/$kind." && rm -r "${folder:?}/$kind"
  done
  split -b "$PIECE" -d "$gguf" "$folder/p/g."
  cp "$tools/gpu_unpack.sh" "$tools/make_padded_llama.py" "$folder/"
  source_of "$folder"
  du -ch "$folder"/p/* "$folder/src.tgz"
}

source_of() {
  local folder=$1 tree
  cp "$here/lent_card.sh" "$folder/"
  tree=$(mktemp -d)
  # With its commit, and the code that is generated.
  git -c advice.detachedHead=false clone -q --depth 1 "file://$(cd "$here/.." && pwd)" "$tree/src"
  cp "$here"/../protos/speculation/v1/*_pb2* "$tree/src/protos/speculation/v1/"
  # Nothing is installed there, and yet Outrider's version is asked for.
  (cd "$tree/src" && python -c \
    "from setuptools import build_meta; build_meta.prepare_metadata_for_build_wheel('.')") >/dev/null
  tar -C "$tree" -czf "$folder/src.tgz" src && rm -rf "$tree"
}

start() {
  mkdir -p "$HOLD/queue" "$HOLD/done" "$HOLD/out"
  setsid bash "${BASH_SOURCE[0]}" _work "$HOLD" >"$HOLD/log" 2>&1 </dev/null &
  echo $! >"$HOLD/worker"
}

work() {
  cd "$HOLD"
  mkdir -p parts && (cd in && for piece in a.*; do mv "$piece" "$HOLD/parts/part.${piece#a.}"; done)
  # Whole paths: they are what env.sh names, and runs are elsewhere.
  bash gpu_unpack.sh "$HOLD/parts" "$HOLD/env"
  rm -r parts
  make_runnable env
  cat in/g.* >model.gguf
  tar -xzf src.tgz
  . env/env.sh
  export PYTHONPATH=$HOLD/src:$HOLD/src/protos:$PYTHONPATH
  echo "unpacked after ${SECONDS} s"
  local number=0 next padding= code
  [ ! -f make_padded_llama.py ] || padding="--padding '$HOLD/make_padded_llama.py'"
  while true; do
    next=$HOLD/queue/$number
    [ -f "$next" ] || { sleep 0.5; continue; }
    ! grep -q -- --peer "$next" || unpack_vllm
    code=0
    (cd src && eval "python3 -m benchmarks.gpu_session --gguf '$HOLD/model.gguf' --models '$HOLD/models' \
      $padding --data '$HOLD/data' --out '$HOLD/out' $(cat "$next")") || code=$?
    echo "$code" >"$HOLD/done/$number"
    number=$((number + 1))
  done
}

# Once, before the first run that asks for vLLM: its pieces have come by then.
unpack_vllm() {
  [ ! -d vllm ] || return 0
  mkdir -p vparts && (cd vin && for piece in v.*; do mv "$piece" "$HOLD/vparts/part.${piece#v.}"; done)
  (unset PYTHONPATH LD_PRELOAD; bash gpu_unpack.sh "$HOLD/vparts" "$HOLD/vllm") && rm -r vparts vin
  # It hides torchvision, for the sake of another torch: vLLM has the machine's own, and imports both.
  rm -f vllm/site/sitecustomize.py
  make_runnable vllm
}

# What wheels bring to be run, as Triton's assembler: their modes are lost on the way.
make_runnable() {
  find "$1/site" -path '*/bin/*' -type f -exec chmod +x {} +
}

queue() {
  local number
  number=$(find "$HOLD/queue" -type f | wc -l)
  printf '%q ' "$@" >"$HOLD/queue/.$number" && mv "$HOLD/queue/.$number" "$HOLD/queue/$number"
}

wait_for() {
  local until=$((SECONDS + $1)) runs=${2:-1000}
  # Nor for a worker that has died: whoever lent the card counts every second.
  while [ $SECONDS -lt $until ] && [ "$(find "$HOLD/done" -type f | wc -l)" -lt "$runs" ] &&
    alive; do sleep 0.5; done
  tail -n 12 "$HOLD/log"
  [ -z "${OUT:-}" ] || tar -C "$HOLD" --exclude=code -czf "$OUT/out.tgz" out log
  alive && [ "$(cat "$HOLD"/done/* 2>/dev/null | grep -cv '^0$')" = 0 ]
}

alive() {
  kill -0 "$(cat "$HOLD/worker")" 2>/dev/null
}

case ${1:-} in
  pack) shift; pack "$@" ;;
  source) shift; source_of "$@" ;;
  start) start ;;
  queue) shift; queue "$@" ;;
  wait) shift; wait_for "$@" ;;
  stop) kill "$(cat "$HOLD/worker")" ;;
  _work) work ;;
  *) sed -n '2,13p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
