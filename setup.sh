#!/usr/bin/env bash
# Make the Python environment in .venv, once; `setup.sh --tools` adds what tests and checks need.
# Prints nothing when all is there. VENV names another folder; PYTHON another interpreter.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

venv=${VENV:-.venv}
python=${PYTHON:-python3}

# Install a requirements file unless this very file was installed before.
install() {
  local file=$1 stamp
  stamp="$venv/.installed-$file"
  cmp -s "$file" "$stamp" && return
  echo "setup: installing $file into $venv (once; a few minutes without a package cache)" >&2
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$file"
  cp "$file" "$stamp"
}

if [[ -e $venv && ! -f $venv/pyvenv.cfg ]]; then
  echo "setup: VENV=$venv exists and is no virtual environment; name another folder" >&2
  exit 2
fi
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then # absent, or its making was interrupted
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup: $("$python" --version 2>&1) is too old, 3.11 or newer is needed; set PYTHON to one" >&2
    exit 2
  }
  echo "setup: making a virtual environment in $venv" >&2
  "$python" -m venv --clear "$venv" || {
    echo "setup: $python cannot make virtual environments; install its venv package (Debian: python3-venv)" >&2
    exit 2
  }
fi
install requirements.txt
if [[ ${1:-} == --tools ]]; then
  install requirements-tools.txt
fi
