# shellcheck shell=bash disable=SC2034,SC2154 # its names are those of the other files too
# For run.sub: the job from its beginning to its end, but for what one trial is (trial.sh).

say() { printf 'run.sub: %s\n' "$*" >&2; }

refuse() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

now_ms() { date +%s%3N; }

# stage NAME TRIAL START_MS STOP_MS NOTE: a row of the job's table; a full disk does not end the job.
stage() {
  local IFS=$'\t'
  printf '%s\n' "$*" 2>/dev/null >>"$stages" || say "$stages: cannot write into it"
}

begin() {
  began=$(now_ms)
  ended_by=
  failed=0
  num_finished=0 # by this start of the job
  trap 'ended_by=${ended_by:-USR1}' USR1
  trap 'ended_by=TERM' TERM
  trap 'ended_by=INT' INT
  scratch=$(mktemp -d)
  trap 'leave "$?"' EXIT
  read_variables "$@"
  set_up
  open_results
  stage setup - "$began" "$(now_ms)" -
  nodes_answer || exit 1
}

read_variables() {
  export CONFIG=${1:-${CONFIG:-config_CPU_2x2x4x1.sh}}
  NEXP=${NEXP:-1}
  ON_FAILURE=${ON_FAILURE:-continue}
  TRIAL_MINUTES=${TRIAL_MINUTES:-0}
  PACKAGE=${PACKAGE:-0}
  [[ $NEXP =~ ^[1-9][0-9]{0,3}$ ]] || refuse "NEXP=$NEXP: expected a number of trials"
  [[ $ON_FAILURE =~ ^(stop|continue)$ ]] || refuse "ON_FAILURE=$ON_FAILURE: expected stop or continue"
  [[ $TRIAL_MINUTES =~ ^[0-9]{1,6}(\.[0-9]{1,3})?$ ]] ||
    refuse "TRIAL_MINUTES=$TRIAL_MINUTES: expected minutes; 0 is no limit"
  [[ $PACKAGE =~ ^[01]$ ]] || refuse "PACKAGE=$PACKAGE: expected 0 or 1"
  [[ $CONFIG == */* ]] || CONFIG=./$CONFIG
  [[ -f $CONFIG && -r $CONFIG ]] || refuse "CONFIG=$CONFIG: no such file; take one of: $(echo config_*.sh)"
  if ((NEXP > 1)) && [[ -n ${SEED:-} ]]; then say "warning: SEED=$SEED is set, so all $NEXP trials have one seed"; fi
}

# Once for all ranks: the interpreter, the configuration's values, the default data set.
set_up() {
  if is_contained; then
    enter_container
  else
    PYTHON=$(./setup.sh)
    export PYTHON
  fi
  run_python -m benchmarks.bert.config || exit 2
  run_python -c '
from benchmarks.bert.config import load
c = load()
print(c.num_nodes, c.ranks_per_node, c.ruleset, c.submission_platform, c.data_dir, sep="\0", end="\0")
' >"$scratch/values"
  local values
  mapfile -d '' -t values <"$scratch/values"
  num_nodes=${values[0]} ranks_per_node=${values[1]} ruleset=${values[2]} platform=${values[3]} data_dir=${values[4]}
  if ((num_nodes != ${SLURM_JOB_NUM_NODES:-0})); then
    refuse "the job has ${SLURM_JOB_NUM_NODES:-0} nodes, NUM_NODES=$num_nodes in $CONFIG; sbatch -N $num_nodes run.sub"
  fi
  if [[ $data_dir == data/kjv && ! (-f $data_dir/train/manifest.json && -f $data_dir/eval/manifest.json) ]]; then
    say "preparing the default data set in $data_dir (once)"
    ! is_contained || refuse "DATA_DIR=$data_dir: prepare it before the job, ./init_datasets.sh"
    ./init_datasets.sh >&2
  fi
}

# The folder of results. The job's trials are numbered from the first number that is free at its first start; what
# an earlier start left, before the job was put back in the queue, is read from the job's table.
open_results() {
  RESULTS_DIR=${RESULTS_DIR:-results/$platform}
  [[ $RESULTS_DIR == /* ]] || RESULTS_DIR=$PWD/$RESULTS_DIR
  mkdir -p -- "$RESULTS_DIR" || refuse "RESULTS_DIR=$RESULTS_DIR: cannot make it"
  local old
  if ((${SLURM_RESTART_COUNT:-0} == 0)); then # numbers of jobs come again: of another cluster, or after a reset
    for old in "$RESULTS_DIR/stages_$SLURM_JOB_ID.tsv" "$RESULTS_DIR/trial_${SLURM_JOB_ID}_"*.txt; do
      [[ ! -e $old ]] || refuse "$old: of another job with this number; move it away or choose another RESULTS_DIR"
    done
  fi
  stages=$RESULTS_DIR/stages_$SLURM_JOB_ID.tsv
  spare=$RESULTS_DIR/.spare_$SLURM_JOB_ID
  ! is_contained || mount_in_container "$(realpath -m -- "$data_dir"):ro" "$RESULTS_DIR"
  keep_spare || refuse "RESULTS_DIR=$RESULTS_DIR: cannot write into it"
  declare -ga finished=() # trial -> status
  first=0
  while [[ -e $RESULTS_DIR/result_$first.txt ]]; do first=$((first + 1)); done
  local name trial start stop note file
  if [[ -s $stages ]]; then
    while IFS=$'\t' read -r name trial start stop note; do
      case $name:$note in
      start:first=*) first=${note#first=} ;;
      trial:result_*) finished[trial]=${note#* status } ;;
      esac
    done <"$stages"
    say "start $((${SLURM_RESTART_COUNT:-0} + 1)) of this job; ${#finished[@]} of $NEXP trials are finished"
  else
    stage stage trial start_ms stop_ms note
    local started
    started=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%S 2>/dev/null) &&
      started=$(date --date="$started" +%s000 2>/dev/null) || started=$began
    stage prolog - "$started" "$began" -
    stage start - "$began" "$began" "first=$first"
  fi
  for file in "$RESULTS_DIR/trial_${SLURM_JOB_ID}_"*.txt; do # of a start whose host was lost
    [[ ! -e $file ]] || settle_late "$file" || true
  done
  for trial in "${!finished[@]}"; do ((finished[trial] == 0)) || failed=1; done
}

settle_late() {
  local trial=${1##*_} status=0
  run_python -m mlperf_log_utils close "$1" || true
  run_python -m tools.verify --ruleset "$ruleset" -- "$1" || status=$?
  settle "${trial%.txt}" "$1" "$status" "$began"
}

is_done() { [[ -n ${finished[$1]:-} ]]; }

# Space for the last record of a log on a full disk: let go before a log is closed.
keep_spare() { [[ -s $spare ]] || head -c 16384 /dev/urandom 2>/dev/null >"$spare"; }

# Whether each node of the job takes a task; else the job cannot go on with them.
nodes_answer() {
  ((failed)) || [[ -z ${have_answered:-} ]] || return 0 # the trial before tells
  have_answered=1
  timeout --kill-after=5 60 srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --export=ALL \
    --job-name=probe true </dev/null && return
  say "a node of $SLURM_JOB_NODELIST does not answer: the job ends"
  failed=1
  start_over "$((${SLURM_RESTART_COUNT:-0} < 3 || num_finished > 0))"
  return 1
}

# Back into the queue with the trials that are missing, where the job may and it does not do so for ever.
start_over() {
  (($1)) && [[ $ON_FAILURE == continue ]] || return 0
  [[ $(scontrol show job "$SLURM_JOB_ID" 2>/dev/null) == *" Requeue=1 "* ]] || return 0
  say "back into the queue for the trials that are missing"
  scontrol requeue "$SLURM_JOB_ID" || true
}

# The results of others, from before the job or beside it, and the job's own.
num_expected() {
  local files=("$RESULTS_DIR"/result_*.txt)
  [[ -e ${files[0]} ]] || files=()
  echo "$((${#files[@]} - ${#finished[@]} + NEXP))"
}

finish() {
  case $ended_by in
  TERM) exit 143 ;;
  INT) exit 130 ;;
  USR1)
    say "the job's time limit is near"
    start_over "$num_finished"
    exit 138
    ;;
  esac
  local start
  start=$(now_ms)
  rm -f -- "$spare"
  if ((NEXP > 1)); then # with those that were there before
    run_python -m tools.verify "$RESULTS_DIR" --ruleset "$ruleset" --runs "$(num_expected)" || failed=1
    stage verify - "$start" "$(now_ms)" "status $failed"
  fi
  if ((PACKAGE)); then
    package || failed=1
  fi
  say "${#finished[@]} of $NEXP trials finished; status $failed; logs in $RESULTS_DIR"
  exit "$failed"
}

# Into a folder of the job's own, beside those of results, as what is below one would be verified with it.
package() {
  local out=$PWD/results/package_$SLURM_JOB_ID
  local arguments=("$RESULTS_DIR" --out "$out" --runs "$(num_expected)")
  [[ -z ${SUBMISSION_ORG:-} ]] || arguments+=(--org "$SUBMISSION_ORG")
  [[ -z ${SYSTEM_TEMPLATE:-} ]] || arguments+=(--system-template "$SYSTEM_TEMPLATE")
  mkdir -p "${out%/*}"
  run_python -m tools.package build "${arguments[@]}"
}

leave() {
  trap '' TERM INT USR1
  [[ -z ${stages:-} ]] || stage job - "$began" "$(now_ms)" "status $1"
  rm -rf -- "$scratch"
  [[ -z ${spare:-} ]] || rm -f -- "$spare"
  leave_container
}
