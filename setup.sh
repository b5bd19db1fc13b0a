#!/usr/bin/env bash
# Find or make a Python environment that can run this project, and print its interpreter.
#
#   ./setup.sh            what a run needs
#   ./setup.sh --tools    what tests and checks need too
#
# PYTHON, if set, is taken as it is. A python3 on PATH that has the packages (a container, a cluster's module) is used
# and nothing is installed. Else a virtual environment is made in VENV (.venv) from the pinned requirements, once.
set -euo pipefail
unset CDPATH
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

venv=${VENV:-.venv}
requirements=(requirements.txt)
modules=(torch mlperf_logging h5py numpy tokenizers safetensors google_crc32c numba)
if [[ ${1:-} == --tools ]]; then
  requirements+=(requirements-tools.txt requirements-bench.txt requirements-tune.txt)
  modules+=(pytest hypothesis ruff mypy transformers optuna)
fi

say() { printf 'setup: %s\n' "$*" >&2; }

has_modules() {
  "$1" -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))' "${modules[@]}" 2>/dev/null
}

make_venv() {
  if [[ -e $venv && ! -f $venv/pyvenv.cfg ]]; then
    say "VENV=$venv exists and is no virtual environment; name another folder"
    exit 2
  fi
  if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    say "$(python3 --version 2>&1) is too old, 3.11 or newer is needed; put a newer python3 first in PATH"
    exit 2
  fi
  say "making a virtual environment in $venv"
  if ! python3 -m venv --clear "$venv" >&2; then
    say "python3 cannot make virtual environments; install its venv package (Debian: python3-venv)"
    exit 2
  fi
}

# Install a requirements file unless this very file was installed before.
install() {
  local stamp=$venv/.installed-$1
  cmp -s "$1" "$stamp" && return
  say "installing $1 into $venv (once; minutes, if packages must be downloaded)"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$1" >&2
  cp "$1" "$stamp"
}

if [[ -n ${PYTHON:-} ]]; then
  echo "$PYTHON"
elif has_modules python3; then
  echo python3
else
  exec 9>"$venv.lock" # several ranks may start on a fresh checkout at once: one makes it, the others wait
  flock 9
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 || make_venv # absent, or its making was interrupted
  for file in "${requirements[@]}"; do install "$file"; done
  echo "$venv/bin/python"
fi
