#!/bin/sh
# pip in an image build: install or wheel, and what it takes.
#
# Where the build context has wheels in deploy/wheels (mounted at /wheels), nothing else is used, so
# that the build needs no network. USE_WHEELS=no leaves them out.
set -eu
verb=$1
shift
if [ "${USE_WHEELS:-yes}" = yes ] && ls /wheels/*.whl >/dev/null 2>&1; then
  set -- --no-index --find-links /wheels "$@"
fi
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
exec python -m pip "$verb" --quiet "$@"
