# shellcheck shell=bash disable=SC2034,SC2154 # its names are those of the other files too
# For run.sub: one trial, from its srun to its place among the results.

GRACE_S=20 # for the ranks to close the log after a signal; below Slurm's KillWait

# The log has a name of the job's own until it is known to be a result.
run_trial() {
  local trial=$1 log=$RESULTS_DIR/trial_${SLURM_JOB_ID}_$1.txt start status=0
  [[ -z $ended_by ]] || return 1
  keep_spare || say "warning: $RESULTS_DIR is full"
  start=$(now_ms)
  say "trial $trial of $NEXP"
  RESULT_FILE=$log srun --nodes="$num_nodes" --ntasks="$((num_nodes * ranks_per_node))" \
    --ntasks-per-node="$ranks_per_node" --distribution=block --cpu-bind=none --kill-on-bad-exit=1 --wait=60 --export=ALL \
    --job-name="trial_$trial" "${container[@]}" ./run_and_time.sh </dev/null &
  await_step "$!" || status=$?
  settle "$trial" "$log" "$status" "$start"
}

# Wait for the step; end it when its time is up or a signal to this script wants it. Returns its status.
await_step() {
  local step=$1 timer='' status=0 out_of_time=
  if [[ $TRIAL_MINUTES =~ [1-9] ]]; then
    trap 'out_of_time=1' USR2
    start_timer "$(awk "BEGIN { printf \"%d\", $TRIAL_MINUTES * 60 + 0.999 }")"
  fi
  while [[ -z $ended_by$out_of_time ]] && kill -0 "$step" 2>/dev/null; do
    status=0
    wait "$step" || status=$?
  done
  [[ -z $timer ]] || stop_timer || true
  if [[ -n $ended_by$out_of_time ]]; then
    say "ending the trial: ${ended_by:-TRIAL_MINUTES=$TRIAL_MINUTES are over}"
    status=143
    end_step "$step" && status=0 # it had ended well, and its log was being verified
  fi
  return "$status"
}

# USR2 after so many seconds. In one process, so that it can be ended: a read of what nobody writes.
start_timer() {
  exec {nothing}<> <(:)
  { read -rt "$1" -u "$nothing" _ || kill -s USR2 "$$"; } &
  timer=$!
  exec {nothing}>&-
}

stop_timer() { kill -s KILL "$timer" && wait "$timer"; } 2>/dev/null

# TERM to the tasks; what is left after a while is killed, by srun, which does so when it is sent TERM itself. Returns
# the step's status.
end_step() {
  local step=$1
  timeout 10 scancel --quiet --signal=TERM "$SLURM_JOB_ID" 2>/dev/null & # of no use to a job that Slurm ends
  has_ended "$step" "$GRACE_S" || kill -s TERM "$step" 2>/dev/null
  has_ended "$step" 5 || kill -s KILL "$step" 2>/dev/null
  local status=0
  wait "$step" || status=$?
  while kill -0 "$step" 2>/dev/null; do
    status=0
    wait "$step" || status=$?
  done
  return "$status"
}

# has_ended PID SECONDS: whether it does within these.
has_ended() {
  local tries
  for ((tries = 0; tries < $2 * 5; tries++)); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.2 || true
  done
  return 1
}

# settle TRIAL LOG STATUS START_MS: the log is closed and becomes a result, or, of a trial that was interrupted, is set
# aside. Returns whether the trial reached its target and its log passes.
settle() {
  local trial=$1 log=$2 status=$3 start=$4 stop outcome=none place=none
  stop=$(now_ms)
  if [[ -s $log ]]; then
    ((status == 0)) || { rm -f -- "$spare" && run_python -m mlperf_log_utils close "$log"; } || true
    outcome=$(outcome_of "$log")
    [[ $outcome != missed ]] || status=1
    case $outcome in
    success | missed) place=$(moved "$log" result_ "$((first + trial))") ;;
    *) place=$(moved "$log" "interrupted_${trial}_" 0) ;;
    esac
    stage init "$trial" "$(time_of init_start "$place")" "$(time_of init_stop "$place")" -
    stage run "$trial" "$(time_of run_start "$place")" "$(time_of run_stop "$place")" -
    stage verify "$trial" "$(time_of run_stop "$place")" "$stop" -
  else
    rm -f -- "$log"
  fi
  stage trial "$trial" "$start" "$stop" "${place##*/} $outcome status $status"
  if [[ $outcome == success || $outcome == missed ]]; then
    finished[trial]=$status
    num_finished=$((num_finished + 1))
  fi
  say "trial $trial of $NEXP: $outcome, status $status, $(((stop - start + 500) / 1000)) s, ${place##*/}"
  ((status == 0))
}

# What the log's end says: success, missed (trained to MAX_STEPS), else the reason of an interruption.
outcome_of() {
  local end
  end=$(grep --text -F '"key": "run_stop"' "$1" | tail -n 1)
  case $end in
  *'"status": "success"'*) echo success ;;
  *' not reached within MAX_STEPS='*) echo missed ;;
  *'"reason": "'*) end=${end##*'"reason": "'} && end=${end%%'"'*} && echo "aborted (${end:0:120})" ;;
  *) echo 'aborted (the log has no end)' ;;
  esac
}

# moved LOG PREFIX NUMBER: give it the first free number from NUMBER on and print its new path. Never overwrites.
moved() {
  local number=$3
  until ln -T -- "$1" "$RESULTS_DIR/$2$number.txt" 2>/dev/null; do
    if [[ ! -e $RESULTS_DIR/$2$number.txt ]]; then # no hard links here (FUSE, SMB)
      mv --no-clobber --no-target-directory -- "$1" "$RESULTS_DIR/$2$number.txt" 2>/dev/null || true
      [[ -e $1 ]] || { echo "$RESULTS_DIR/$2$number.txt" && return; }
      [[ -e $RESULTS_DIR/$2$number.txt ]] || { echo "$1" && return; }
    fi
    number=$((number + 1))
  done
  rm -f -- "$1"
  echo "$RESULTS_DIR/$2$number.txt"
}

# When the log's first record of the key was written, ms since 1970.
time_of() { grep --text -m 1 -F "\"key\": \"$1\"" "$2" | sed 's/.*"time_ms": \([0-9]*\).*/\1/' | grep . || echo -; }
