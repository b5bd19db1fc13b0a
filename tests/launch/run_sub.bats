#!/usr/bin/env bats
# What run.sub asks of Slurm where no real one can show it: the commands are compared as text, Slurm's programs are
# fakes. PYTHON is an interpreter that has the project's packages.
# shellcheck disable=SC2016 # bodies of fakes, for another shell
bats_require_minimum_version 1.5.0

setup() {
  cd "$BATS_TEST_DIRNAME/../.." || return
  real=$(./setup.sh)
  bin=$BATS_TEST_TMPDIR/bin
  calls=$BATS_TEST_TMPDIR/calls
  export bin calls real
  mkdir "$bin"
  fake srun 'case "$*" in
    *run_and_time.sh) echo ":::MLLOG {\"time_ms\": 1, \"key\": \"run_stop\", \"metadata\": {\"status\": \"success\"}}" >"$RESULT_FILE" ;;
    *" python3 "*) until [[ $1 == python3 ]]; do shift; done; shift; exec "$real" "$@" ;; # as in a container
  esac'
  fake scancel 'kill "$(cat "$calls.srun")"'
  fake scontrol 'echo "   Requeue=${REQUEUE:-1} Restarts=0"'
  fake enroot
  printf '#!/bin/sh\n' >"$bin/squeue"
  cat >"$bin/python" <<'SH'
#!/usr/bin/env bash
case "$*" in
*tools.* | *mlperf_log_utils*) printf python >>"$calls"; printf ' %q' "$@" >>"$calls"; echo >>"$calls" ;;
*) exec "$real" "$@" ;;
esac
SH
  chmod +x "$bin"/*
  export PATH=$bin:$PATH PYTHON=$bin/python
  export SLURM_JOB_ID=42 SLURM_JOB_NODELIST='n[001-128]' SLURMD_NODENAME=n001 SLURM_SUBMIT_DIR=$PWD
  export RESULTS_DIR="$BATS_TEST_TMPDIR/the results"
  unset CONFIG NEXP TRIAL_MINUTES ON_FAILURE SEED CONTAINER_IMAGE PACKAGE HARNESS_DIR SLURM_RESTART_COUNT
}

# fake NAME BODY: a program that notes how it was called, quoted, and does what BODY says.
fake() {
  printf '#!/usr/bin/env bash\nprintf "%%s" "%s" >>"$calls"; printf " %%q" "$@" >>"$calls"; echo >>"$calls"\n%s\n' \
    "$1" "${2:-}" >"$bin/$1"
  chmod +x "$bin/$1"
}

# job NODES RANKS: the script, as the job's batch host runs it, for such a configuration.
job() {
  export SLURM_JOB_NUM_NODES=$1
  config="$BATS_TEST_TMPDIR/config.sh"
  printf 'export %s\n' NUM_NODES="$1" RANKS_PER_NODE="$2" DATA_DIR=/data/bert SUBMISSION_PLATFORM=X >"$config"
  run bash run.sub "$config"
}

expect() {
  diff <(cat) "$calls"
}

@test "128 nodes x 8 ranks, plain" {
  job 128 8
  [ "$status" -eq 0 ]
  expect <<'CALLS'
srun --overlap --nodes=128 --ntasks-per-node=1 --export=ALL --job-name=probe true
srun --nodes=128 --ntasks=1024 --ntasks-per-node=8 --distribution=block --cpu-bind=none --kill-on-bad-exit=1 --wait=60 --export=ALL --job-name=trial_0 ./run_and_time.sh
CALLS
  [ "$(ls -A "$RESULTS_DIR")" = $'result_0.txt\nstages_42.tsv' ]
}

@test "one node; three trials are three steps, verified and packaged together" {
  NEXP=3 PACKAGE=1 SUBMISSION_ORG='The Org' SYSTEM_TEMPLATE='a b.json' job 1 2
  [ "$status" -eq 0 ]
  expect <<CALLS
srun --overlap --nodes=1 --ntasks-per-node=1 --export=ALL --job-name=probe true
$(for i in 0 1 2; do
    echo "srun --nodes=1 --ntasks=2 --ntasks-per-node=2 --distribution=block --cpu-bind=none --kill-on-bad-exit=1 --wait=60 --export=ALL --job-name=trial_$i ./run_and_time.sh"
  done)
python -m tools.verify $(printf %q "$RESULTS_DIR") --ruleset 5.0.0 --runs 3
python -m tools.package build $(printf %q "$RESULTS_DIR") --out $(printf %q "$PWD/results/package_42") --runs 3 --org The\\ Org --system-template a\\ b.json
CALLS
}

@test "in a container: pyxis's flags, names of the job alone, and their removal" {
  unset PYTHON
  CONTAINER_IMAGE='registry#bert:1' job 2 8
  [ "$status" -eq 0 ]
  c="--container-image=registry#bert:1 --container-name=bert-42"
  own="--container-workdir=$PWD --no-container-mount-home"
  few="$c --container-mounts=$PWD:$PWD\\,$BATS_TEST_TMPDIR:$BATS_TEST_TMPDIR:ro $own"
  all="$c --container-mounts=$PWD:$PWD\\,$BATS_TEST_TMPDIR:$BATS_TEST_TMPDIR:ro\\,/data/bert:/data/bert:ro\\,${RESULTS_DIR/ /\\ }:${RESULTS_DIR/ /\\ } $own"
  sed -i 's/python3 -c .*/python3 -c .../' "$calls"
  expect <<CALLS
srun --nodes=2 --ntasks-per-node=1 --export=ALL $few --job-name=import true
srun --overlap --nodes=1 --ntasks=1 --nodelist=n001 --export=ALL $few --job-name=python python3 -m benchmarks.bert.config
srun --overlap --nodes=1 --ntasks=1 --nodelist=n001 --export=ALL $few --job-name=python python3 -c ...
srun --overlap --nodes=2 --ntasks-per-node=1 --export=ALL --job-name=probe true
srun --nodes=2 --ntasks=16 --ntasks-per-node=8 --distribution=block --cpu-bind=none --kill-on-bad-exit=1 --wait=60 --export=ALL --job-name=trial_0 $all ./run_and_time.sh
enroot remove --force pyxis_bert-42
enroot remove --force pyxis_42_bert-42
srun --overlap --nodes=2 --ntasks-per-node=1 --job-name=remove bash -c for\\ name\\;\\ do\\ enroot\\ remove\\ --force\\ \\"\\\$name\\"\\;\\ done\\ \\>/dev/null\\ 2\\>\\&1\\ \\|\\|\\ true sh pyxis_bert-42 pyxis_42_bert-42
CALLS
}

@test "a path that a container's mount cannot name is refused" {
  unset PYTHON
  RESULTS_DIR="$BATS_TEST_TMPDIR/a:b" CONTAINER_IMAGE=x job 2 8
  [ "$status" -eq 2 ]
  [[ $output == *"a:b: a container's mount cannot have"* ]]
}

@test "results that are there are never overwritten: the trials take the next numbers" {
  mkdir "$RESULTS_DIR"
  echo precious >"$RESULTS_DIR/result_0.txt"
  NEXP=2 job 1 2
  [ "$status" -eq 0 ]
  [ "$(cat "$RESULTS_DIR/result_0.txt")" = precious ]
  [ -e "$RESULTS_DIR/result_2.txt" ]
  [[ $output == *"2 of 2 trials finished; status 0"* ]]
  grep -q -- '--runs 3$' "$calls"
}

@test "a failed trial: the next one, or with ON_FAILURE=stop none; the status is 1 either way" {
  fake srun 'case "$*" in *run_and_time.sh) exit 7 ;; esac'
  NEXP=2 job 1 2
  [ "$status" -eq 1 ]
  [ "$(grep -c run_and_time "$calls")" -eq 2 ]
  rm "$calls"
  NEXP=2 ON_FAILURE=stop SLURM_JOB_ID=43 job 1 2
  [ "$status" -eq 1 ]
  [ "$(grep -c run_and_time "$calls")" -eq 1 ]
}

@test "a trial whose time is up is sent TERM through Slurm, and its log is set aside" {
  fake srun 'case "$*" in *run_and_time.sh) echo "$$" >"$calls.srun"; echo begun >"$RESULT_FILE"; exec sleep 60 ;; esac'
  TRIAL_MINUTES=0.02 job 1 2
  [ "$status" -eq 1 ]
  [[ $output == *"TRIAL_MINUTES=0.02 are over"* ]]
  grep -q '^scancel --quiet --signal=TERM 42$' "$calls"
  grep -q '^python -m mlperf_log_utils close' "$calls"
  [ "$(cat "$RESULTS_DIR/interrupted_0_0.txt")" = begun ]
  [ ! -e "$RESULTS_DIR/result_0.txt" ]
}

@test "a node that does not answer: back into the queue where the job may, but not for ever" {
  fake srun 'exit 1'
  job 2 2
  [ "$status" -eq 1 ]
  grep -q '^scontrol requeue 42$' "$calls"
  for never in REQUEUE=0 ON_FAILURE=stop SLURM_RESTART_COUNT=3; do
    rm -r "$calls" "$RESULTS_DIR"
    export "${never?}"
    job 2 2
    unset "${never%=*}"
    [ "$status" -eq 1 ]
    run ! grep -q '^scontrol requeue' "$calls"
  done
}

@test "the time limit: back into the queue where this start has finished a trial" {
  for limited in trial_0 trial_1; do
    fake srun 'case "$*" in
      *'$limited'*) echo "$$" >"$calls.srun"; kill -s USR1 "$PPID"; exec sleep 60 ;;
      *run_and_time.sh) echo ":::MLLOG {\"key\": \"run_stop\", \"metadata\": {\"status\": \"success\"}}" >"$RESULT_FILE" ;;
    esac'
    NEXP=2 job 1 2
    [ "$status" -eq 138 ]
    [[ $output == *"the job's time limit is near"* ]]
    [ "$(grep -c '^scontrol requeue 42$' "$calls")" -eq "${limited#trial_}" ]
    rm -r "$calls" "$RESULTS_DIR"
  done
}

@test "a job that starts again runs only what is missing" {
  mkdir "$RESULTS_DIR"
  printf '%s\n' $'stage\ttrial\tstart_ms\tstop_ms\tnote' $'start\t-\t1\t1\tfirst=4' \
    $'trial\t0\t1\t2\tresult_4.txt success status 0' $'trial\t1\t1\t2\tinterrupted_1_0.txt aborted (x) status 143' \
    >"$RESULTS_DIR/stages_42.tsv"
  SLURM_RESTART_COUNT=1 NEXP=2 job 1 2
  [ "$status" -eq 0 ]
  [ "$(grep -o 'trial_[0-9]' "$calls")" = trial_1 ]
  [ -e "$RESULTS_DIR/result_5.txt" ]
}

@test "a log that a lost start left whole is a result, one without an end is set aside and run again" {
  mkdir "$RESULTS_DIR"
  echo '{"key": "run_stop", "metadata": {"status": "success"}}' >"$RESULTS_DIR/trial_42_0.txt"
  echo begun >"$RESULTS_DIR/trial_42_1.txt"
  SLURM_RESTART_COUNT=1 NEXP=2 job 1 2
  [ "$status" -eq 0 ]
  [ "$(grep -c '^python -m mlperf_log_utils close' "$calls")" -eq 2 ]
  [ "$(grep -o 'trial_[0-9] ' "$calls")" = 'trial_1 ' ]
  [ "$(ls -A "$RESULTS_DIR")" = $'interrupted_1_0.txt\nresult_0.txt\nresult_1.txt\nstages_42.tsv' ]
}

@test "what another job of this number left is refused, and stays as it is" {
  mkdir "$RESULTS_DIR"
  echo mine >"$RESULTS_DIR/stages_42.tsv"
  job 1 2
  [ "$status" -eq 2 ]
  [[ $output == *"of another job with this number"* ]]
  [ "$(cat "$RESULTS_DIR/stages_42.tsv")" = mine ]
}

@test "where there are no hard links a log becomes a result all the same" {
  fake ln 'exit 1'
  job 1 2
  [ "$status" -eq 0 ]
  [ -e "$RESULTS_DIR/result_0.txt" ]
}

@test "a hole in the numbers of the results that are there fails no job" {
  mkdir "$RESULTS_DIR"
  touch "$RESULTS_DIR/result_0.txt" "$RESULTS_DIR/result_2.txt"
  NEXP=2 job 1 2
  [ "$status" -eq 0 ]
  grep -q -- '--runs 4' "$calls"
}

@test "bad input is refused before anything starts" {
  for bad in NEXP=0 NEXP=ten TRIAL_MINUTES=1h ON_FAILURE=wait PACKAGE=yes LEARNING_RAET=1; do
    export "${bad?}"
    job 1 2
    unset "${bad%=*}"
    [ "$status" -eq 2 ]
    [[ $output == *"${bad%=*}"* ]]
  done
  CONFIG=absent run bash run.sub
  [ "$status" -eq 2 ]
  SLURM_JOB_ID='' run bash run.sub
  [ "$status" -eq 2 ]
  SLURM_SUBMIT_DIR=/ run bash run.sub
  [ "$status" -eq 2 ]
  [[ $output == *"set HARNESS_DIR"* ]]
  [ ! -e "$calls" ]
  [ ! -e "$RESULTS_DIR" ]
}
