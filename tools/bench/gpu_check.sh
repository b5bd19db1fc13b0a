#!/usr/bin/env bash
# One GPU in, whether the model is right on it and how fast it is out, in at most four minutes. No data, no network.
#
#   tools/bench/gpu_check.sh              with the GPU that torch finds
#   DEVICE=cpu tools/bench/gpu_check.sh   at tiny sizes: tries the code, says nothing of speed
#
# PYTHON names the interpreter. Exit status 1 where a part failed or did not end within its seconds.
set -euo pipefail
unset CDPATH
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

device=${DEVICE:-cuda}
python=${PYTHON:-$(./setup.sh)}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
failed=()

# The limits add up to 235 seconds. On a CPU they only end what hangs.
part() {
  local name=$1 limit_s=$2 started=$SECONDS status=0
  [[ $device == cpu ]] && limit_s=$((10 * limit_s))
  echo "== $name"
  timeout --kill-after=2 "$limit_s" "$python" -m benchmarks.bert.bench.device_check "$name" --device "$device" || status=$?
  echo "== $name: exit status $status after $((SECONDS - started)) s, of $limit_s"
  ((status == 0)) || failed+=("$name")
}

part device 15
part agreement 60
part waiting 25
part speed 95
part profile 30
part loader 10
if ((${#failed[@]})); then
  echo "gpu_check: failed: ${failed[*]}" >&2
  exit 1
fi
echo "gpu_check: all parts are good"
