#!/usr/bin/env bash
# Install a requirements file into an image's python3, but for torch where the base has one.
set -euo pipefail

requirements=$1

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "error: BASE has $(python3 --version 2>&1 || true); a base with Python 3.11 or newer and pip is needed" >&2
  exit 2
fi
# The image is the environment: no other one inside it.
export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
wanted=$(<"$requirements")
if own=$(python3 -c 'import torch; print(torch.__version__)' 2>/dev/null); then
  echo "install: torch $own of the base stays; the requirements name $(grep '^torch==' "$requirements")"
  wanted=$(grep -v '^torch==' "$requirements")
fi
python3 -m pip install --requirement /dev/stdin <<<"$wanted"
