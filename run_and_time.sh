#!/usr/bin/env bash
# One timed trial on this node: environment in, result log out, exit status honest.
#
#   ./run_and_time.sh                              the default: two CPU ranks, a small BERT, about two minutes
#   CONFIG=config_X.sh ./run_and_time.sh           another configuration
#   LEARNING_RATE=1e-3 ./run_and_time.sh           the caller's variables win over the file's
#
# Sets itself up where nothing is there yet (setup.sh, init_datasets.sh). Exit status: 0 the target was reached and the
# log passes, 1 not, 2 the input was refused, 128 + n ended by signal n.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

say() { printf '%s\n' "$*" >&2; }

# The file's values, except where the caller's environment has its own.
export CONFIG=${CONFIG:-config_CPU_1x2x8x1.sh}
[[ $CONFIG == */* ]] || CONFIG=./$CONFIG # `source` would look for a bare name in PATH
if [[ ! -f $CONFIG || ! -r $CONFIG ]]; then
  say "error: CONFIG=$CONFIG: no such file; take one of: $(echo config_*.sh)"
  exit 2
fi
callers=$(export -p)
# shellcheck source=config_CPU_1x2x8x1.sh
source "$CONFIG"
eval "$callers"

PYTHON=$(./setup.sh)
export PYTHON
"$PYTHON" -m benchmarks.bert.config || exit 2

data_dir=${DATA_DIR:-data/kjv}
if [[ $data_dir == data/kjv && ! (-f $data_dir/train/manifest.json && -f $data_dir/eval/manifest.json) ]]; then
  say "run_and_time: preparing the default data set in $data_dir (once)"
  ./init_datasets.sh >&2
fi

if [[ -z ${RESULT_FILE:-} ]]; then
  folder=results/${SUBMISSION_PLATFORM:-none}
  trial=0
  while [[ -e $folder/result_$trial.txt ]]; do trial=$((trial + 1)); done
  RESULT_FILE=$folder/result_$trial.txt
fi
export RESULT_FILE

# The truth about the page caches goes into the log.
export CACHES_CLEARED=0
if [[ ${CLEAR_CACHES:-0} == 1 ]]; then
  if sync && { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null; then
    CACHES_CLEARED=1
  else
    say "warning: CLEAR_CACHES=1, but the page caches could not be dropped (that needs root); the log says so"
  fi
fi

cores=$(nproc)
threads=$((cores / ${RANKS_PER_NODE:-1}))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}

# In a process group of its own, so that Ctrl-C reaches the ranks once, through us.
set -m
"$PYTHON" -m benchmarks.bert.launch &
launcher=$!
received=0
# shellcheck disable=SC2317 # called by the traps
end() {
  ((received)) || kill -s TERM "$launcher" 2>/dev/null || true
  received=$1
}
trap 'end 1' HUP
trap 'end 2' INT
trap 'end 15' TERM
status=0
wait "$launcher" || status=$?
while kill -0 "$launcher" 2>/dev/null; do # a trapped signal ends `wait` early
  status=0
  wait "$launcher" || status=$?
done
trap - HUP INT TERM
((received == 0 || status == 0)) || status=$((128 + received))

[[ -e $RESULT_FILE && $status != 2 ]] || exit "$((status ? status : 1))"
"$PYTHON" -m mlperf_log_utils close "$RESULT_FILE"
verdict=0
"$PYTHON" -m tools.verify --ruleset "${RULESET:-5.0.0}" "$RESULT_FILE" || verdict=$?
exit "$((status ? status : verdict))"
