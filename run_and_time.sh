#!/usr/bin/env bash
# One timed trial: environment in, result log out, exit status honest.
#
#   ./run_and_time.sh                              the default: two CPU ranks, a small BERT, about two minutes
#   CONFIG=config_X.sh ./run_and_time.sh           another configuration
#   LEARNING_RATE=1e-3 ./run_and_time.sh           the caller's variables win over the file's
#   mpirun -np 4 ./run_and_time.sh                 each process is one rank
#   srun --ntasks-per-node=8 ./run_and_time.sh     the same under Slurm; or one task a node, which starts its ranks
#
# Sets itself up where nothing is there yet (setup.sh, init_datasets.sh). Of several processes the first one writes and
# verifies the log. Exit status: 0 the target was reached and the log passes, 1 not, 2 the input was refused, 128 + n
# ended by signal n.
set -euo pipefail
unset CDPATH
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

say() { printf '%s\n' "$*" >&2; }

export CONFIG=${CONFIG:-config_CPU_1x2x8x1.sh}
[[ $CONFIG == */* ]] || CONFIG=./$CONFIG # `source` would look for a bare name in PATH
if [[ ! -f $CONFIG || ! -r $CONFIG ]]; then
  say "error: CONFIG=$CONFIG: no such file; take one of: $(printf "%s\\n" config_*.sh | grep -v _common | tr "\\n" " ")"
  exit 2
fi
PYTHON=$(./setup.sh)
export PYTHON PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
place=$("$PYTHON" -m benchmarks.bert.place) || exit 2
read -r role number <<<"$place" # "node N", which starts its ranks, or "rank N"

# The file, now known to hold nothing but exports; then again what the caller's environment had set.
callers=$(export -p | grep -v '^declare -[A-Za-z]*r[A-Za-z]* ')
# shellcheck source=config_CPU_1x2x8x1.sh
source "$CONFIG"
eval "$callers"

data_dir=${DATA_DIR:-data/kjv}
if [[ $data_dir == data/kjv && ! (-f $data_dir/train/manifest.json && -f $data_dir/eval/manifest.json) ]]; then
  say "run_and_time: preparing the default data set in $data_dir (once)"
  ./init_datasets.sh >&2
fi

# The first process claims the result file by creating it, so that trials side by side take different ones and none
# takes an old one. The others write no log.
claim() { (set -o noclobber && : >"$1") 2>/dev/null; }
refuse_result() {
  say "error: RESULT_FILE=$RESULT_FILE: exists or cannot be created; a result is never overwritten"
  exit 2
}
if ((number > 0)); then
  [[ ! -s ${RESULT_FILE:-} ]] || refuse_result # as the first one, which its launcher may end before it says so
elif [[ -n ${RESULT_FILE:-} ]]; then
  [[ $RESULT_FILE != -* ]] || RESULT_FILE=./$RESULT_FILE
  { mkdir -p -- "$(dirname -- "$RESULT_FILE")" && claim "$RESULT_FILE"; } || refuse_result
else
  folder=results/${SUBMISSION_PLATFORM:-none}
  trial=0
  mkdir -p "$folder"
  until claim "$folder/result_$trial.txt"; do
    if [[ ! -e $folder/result_$trial.txt ]]; then
      say "error: $folder/result_$trial.txt: cannot create it"
      exit 2
    fi
    trial=$((trial + 1))
  done
  export RESULT_FILE=$folder/result_$trial.txt
fi

((number > 0)) || trap '[[ -s $RESULT_FILE ]] || rm -f -- "$RESULT_FILE"' EXIT # of a run that never began

# Each node's first process drops the page caches; the truth about it goes into the log. Where this is a container, its
# launcher has dropped them: CACHE_DROPS_BEFORE is the kernel's count of drops from before, which no container hides.
cache_drops() { sed -n 's/^drop_pagecache //p' /proc/vmstat; }
export CACHES_CLEARED=0
if [[ ${CLEAR_CACHES:-0} == 1 && ($role == node || $((number % ${RANKS_PER_NODE:-1})) == 0) ]]; then
  if [[ ${CACHE_DROPS_BEFORE-} =~ ^[0-9]+$ ]] && (($(cache_drops) > 10#$CACHE_DROPS_BEFORE)); then
    CACHES_CLEARED=1
  elif sync && { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null; then
    CACHES_CLEARED=1
  else
    say "warning: CLEAR_CACHES=1, but the page caches could not be dropped (that needs root); the log says so"
  fi
fi

cores=$(nproc)
threads=$((cores / ${RANKS_PER_NODE:-1}))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}

program=benchmarks.bert.launch
[[ $role == node ]] || program=benchmarks.bert.train
# In a process group of its own, so that Ctrl-C reaches the ranks once, through us.
set -m
"$PYTHON" -m "$program" &
child=$!
received=0
# shellcheck disable=SC2317 # called by the traps
end() { # once; the child may have ended by itself meanwhile
  ((received)) || kill -s TERM "$child" 2>/dev/null || true
  received=$1
}
trap 'end 1' HUP
trap 'end 2' INT
trap 'end 15' TERM
status=0
wait "$child" || status=$?
while kill -0 "$child" 2>/dev/null; do # a trapped signal ends `wait` early
  status=0
  wait "$child" || status=$?
done
trap - HUP INT
trap '' TERM # with which srun ends a step once a rank has failed: the verdict is still given
((received == 0 || status == 0)) || status=$((128 + received))

((number == 0)) || exit "$status"
if [[ $status == 2 || ! -s $RESULT_FILE ]]; then # no run began
  exit "$((status ? status : 1))"
fi
"$PYTHON" -m mlperf_log_utils close "$RESULT_FILE"
verdict=0
"$PYTHON" -m tools.verify --ruleset "${RULESET:-5.0.0}" -- "$RESULT_FILE" || verdict=$?
exit "$((status ? status : verdict))"
