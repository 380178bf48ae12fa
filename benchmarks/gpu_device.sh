#!/usr/bin/env bash
# The GPU benchmark on a bare machine, from software that was unpacked into folders there.
#
#   OUT=... GGUF=... PADDING=... DATA=... OURS_ENV=... PEER_ENV=... gpu_device.sh PART...
#
# Parts, in the order they are given: model (write both checkpoints), ours, peer (measure), merge.
# Each is limited in time and keeps what it had: ours.json, peer.json, then gpu.json and gpu.md.
#
#   OUT           folder for reports and logs
#   GGUF          the small model's GGUF file (model)
#   PADDING       Python script `SMALL BIG --device DEVICE` that writes the big checkpoint (model)
#   DATA          Spec-Bench's file or its folder (ours, peer)
#   OURS_ENV      shell file to source before Outrider's interpreter; unset: nothing
#   PEER_ENV      shell file to source before vLLM's interpreter (peer)
#   PYTHON        Outrider's interpreter [python3]; PEER_PYTHON: vLLM's [PYTHON]
#   DEVICE        cuda or cpu [cuda]
#   MODELS        folder for the checkpoints [/dev/shm if it has 20 GiB free, else the temporary one]
#   TARGET        which checkpoint is measured, big or small [big]
#   OURS_SECONDS, PEER_SECONDS   limits of the two parts, starts included [420, 300]
#   BENCH_ARGS, OURS_ARGS, PEER_ARGS   further options of benchmarks.gpu, separated by spaces
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

need() {
  for name in "$@"; do
    [ -n "${!name:-}" ] || { echo "error: $name is not set" >&2; exit 2; }
  done
}

need OUT
PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-cuda} TARGET=${TARGET:-big}
mkdir -p "$OUT"
if [ -z "${MODELS:-}" ]; then
  # A checkpoint in memory is read faster; where it does not fit, a disk has to do.
  free=$(df --output=avail -B1G /dev/shm 2>/dev/null | tail -n 1 | tr -d ' ' || true)
  if [ "${free:-0}" -ge 20 ]; then MODELS=/dev/shm/outrider-models
  else MODELS=${TMPDIR:-/tmp}/outrider-models; fi
fi
small=$MODELS/small big=$MODELS/big

# Parts run where `set -e` is off, as their exit codes are looked at: hence each `|| exit`.
ours_environment() {
  # shellcheck disable=SC1090
  [ -z "${OURS_ENV:-}" ] || . "$OURS_ENV"
  export PYTHONPATH=$repo:$repo/protos${PYTHONPATH:+:$PYTHONPATH}
  export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
  cd "$repo" || exit
}

model() (
  need GGUF PADDING
  ours_environment
  mkdir -p "$MODELS" || exit
  "$PYTHON" -c 'import sys
from pathlib import Path
from outrider.gguf_conversion import convert_llama_gguf
convert_llama_gguf(Path(sys.argv[1]), Path(sys.argv[2]), lambda done, total: None)' "$GGUF" "$small" || exit
  [ "$TARGET" = small ] || "$PYTHON" "$PADDING" "$small" "$big" --device "$DEVICE" || exit
  du -sh "$MODELS"/*
)

# bench NAME SECONDS OPTION...
bench() (
  need DATA
  name=$1 limit=$2; shift 2
  ours_environment
  # shellcheck disable=SC2086
  timeout --signal=INT --kill-after=60 "$limit" "$PYTHON" -m benchmarks.gpu --device "$DEVICE" \
    --model "$MODELS/$TARGET" --data "$DATA" --out "$OUT" --name "$name" --logs "$OUT" \
    ${BENCH_ARGS:-} "$@"
)

merge() (
  ours_environment
  parts=()
  for name in ours peer; do [ ! -f "$OUT/$name.json" ] || parts+=("$OUT/$name.json"); done
  [ ${#parts[@]} -gt 0 ] || { echo "error: there is nothing to merge in $OUT" >&2; exit 1; }
  "$PYTHON" -m benchmarks.merge gpu "${parts[@]}" --out "$OUT" || exit
  cat "$OUT/gpu.md"
)

failed=0
for part in "$@"; do
  began=$SECONDS
  code=0
  case $part in
    model) model || code=$? ;;
    # shellcheck disable=SC2086
    ours) bench ours "${OURS_SECONDS:-420}" --rows outrider ${OURS_ARGS:-} || code=$? ;;
    # shellcheck disable=SC2086
    peer)
      need PEER_ENV
      bench peer "${PEER_SECONDS:-300}" --rows "vllm plain" --peer-env "$PEER_ENV" \
        --peer-python "${PEER_PYTHON:-$PYTHON}" ${PEER_ARGS:-} || code=$?
      ;;
    merge) merge || code=$? ;;
    *) echo "error: unknown part $part; parts are model, ours, peer, merge" >&2; exit 2 ;;
  esac
  echo "== $part: exit code $code after $((SECONDS - began)) s"
  # A part that ran out of time has kept its figures: the next ones are still worth having.
  [ "$code" -eq 0 ] || failed=1
  if [ "$part" = model ] && [ "$code" -ne 0 ]; then exit 1; fi
done
exit $failed
