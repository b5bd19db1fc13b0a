#!/usr/bin/env bats
# run_with_docker.sh against a stand-in for docker: the commands that it gives, as text. Real containers: test_docker.py.

bats_require_minimum_version 1.5.0

setup() {
  checkout="$BATS_TEST_TMPDIR/check out"
  mkdir -p "$checkout/data/kjv" "$BATS_TEST_TMPDIR/bin"
  cp "${BATS_TEST_DIRNAME:?}/../../run_with_docker.sh" "$checkout"
  echo 'export SUBMISSION_PLATFORM=here' >"$checkout/config_CPU_1x2x8x1.sh"

  export FAKE="$BATS_TEST_TMPDIR/fake" # what the stand-in is told, and what it was asked
  mkdir "$FAKE"
  settings 1 0 -1 5.0.0 data/kjv here
  : >"$FAKE/forward"
  export FAKE_RESULTS="$checkout/results/here"
  cat >"$BATS_TEST_TMPDIR/bin/docker" <<'DOCKER'
#!/usr/bin/env bash
printf '%q ' "$@" | sed 's/ $/\n/' >>"$FAKE/calls"
last=${*: -1}
case $1 in
image) [[ ! -e $FAKE/no-image ]] && echo sha256:feed || { echo "Error: No such image" >&2; exit 1; } ;;
info) cat "$FAKE/info" 2>/dev/null || true ;;
create)
  [[ ! -e $FAKE/slow-create ]] || { touch "$FAKE/creating"; sleep 1; }
  printf '%s\n' "$*" >"$FAKE/container-$3"
  ;;
start)
  command=$(<"$FAKE/container-$last")
  case $command in
  *"ask forward"*) cat "$FAKE/forward" ; exit "$(cat "$FAKE/forward-status" 2>/dev/null || echo 0)" ;;
  *"ask settings") cat "$FAKE/settings" ;;
  *run_and_time.sh)
    env >"$FAKE/environment"
    log=$(grep -o 'result_[0-9]*\.txt' <<<"$command" | head -1)
    touch "$FAKE/running"
    if [[ -e $FAKE/endless ]]; then
      echo record >"$FAKE_RESULTS/$log"
      while [[ ! -e $FAKE/stopped ]]; do sleep 0.05; done
      exit 143
    fi
    read -r status <"$FAKE/statuses" || status=0
    sed -i 1d "$FAKE/statuses" 2>/dev/null || true
    [[ -e $FAKE/no-log ]] || echo record >"$FAKE_RESULTS/$log"
    exit "$status"
    ;;
  *tools.verify*) exit "$(cat "$FAKE/verdict" 2>/dev/null || echo 0)" ;;
  esac
  ;;
stop) # a container that has not started yet cannot be stopped
  if [[ -e $FAKE/too-early ]]; then rm "$FAKE/too-early"; else touch "$FAKE/stopped"; fi
  ;;
esac
DOCKER
  printf '#!/bin/sh\nexit 1\n' >"$BATS_TEST_TMPDIR/bin/nvidia-smi"
  chmod +x "$BATS_TEST_TMPDIR"/bin/*
  PATH="$BATS_TEST_TMPDIR/bin:$PATH"
  : >"$FAKE/statuses"
  unset IMAGE NEXP CONFIG DATA_DIR RESULTS_DIR RESULT_FILE GPUS CLEAR_CACHES SEED
}

teardown() { # what a failed test leaves
  touch "$FAKE/stopped"
  [[ -z ${launcher:-} ]] || kill -s KILL "$launcher" 2>/dev/null || true
}

settings() { printf '%s\n' "$@" >"$FAKE/settings"; }

launch() { run "$checkout/run_with_docker.sh" 3>&-; }

# The commands, with what differs between calls and callers made alike.
commands() {
  local groups
  groups=$(printf -- '--group-add %s ' $(id -G))
  sed -E "s/mlperf-bert-[0-9a-f]{8}-[0-9a-f]{4}-/CALL-/; s/--user $(id -u):$(id -g) $groups/USER /" "$FAKE/calls"
}

trial() { commands | grep '^create.*run_and_time.sh$'; }

refused() { # TEXT…: nothing but one error that holds them, and no trial
  [ "$status" -eq 2 ] || {
    echo "status $status: $output"
    return 1
  }
  local text
  for text; do [[ $output == *"$text"* ]] || {
    echo "not said: $text; but: $output"
    return 1
  }; done
  [[ $output == *error:* ]]
  [ ! -e "$FAKE/running" ]
}

@test "a trial is the commands inspect, ask, create, start and rm, and nothing else" {
  launch
  [ "$status" -eq 0 ]
  local here=${checkout// /\\ }
  local flags="--rm --init --network none --hostname mlperf-bert --add-host mlperf-bert:127.0.0.1 --add-host loopback:::ffff:127.0.0.1 --security-opt no-new-privileges --shm-size 8g USER "
  flags+="--mount type=bind\,\\\"source=$here/./config_CPU_1x2x8x1.sh\\\"\,target=/opt/bert/config_CPU_1x2x8x1.sh\,readonly --env CONFIG=config_CPU_1x2x8x1.sh"
  local data="--mount type=bind\,\\\"source=$here/data/kjv\\\"\,target=/data\,readonly --mount type=bind\,\\\"source=$here/results/here\\\"\,target=/results --env DATA_DIR=/data"
  commands | sed -E 's/(ask forward) .*/\1 NAMES/' >"$FAKE/seen"
  cat >"$FAKE/expected" <<EXPECTED
image inspect --format \{\{.Id\}\} -- mlperf-bert
info --format \{\{.SecurityOptions\}\}
create --name CALL-ask-1 $flags sha256:feed python3 -m scripts.docker.ask forward NAMES
start --attach -- CALL-ask-1
rm --force -- CALL-ask-1
create --name CALL-ask-2 $flags sha256:feed python3 -m scripts.docker.ask settings
start --attach -- CALL-ask-2
rm --force -- CALL-ask-2
create --name CALL-0 $flags $data --env RESULT_FILE=/results/result_0.txt sha256:feed ./run_and_time.sh
start --attach -- CALL-0
rm --force -- CALL-0
EXPECTED
  diff "$FAKE/expected" "$FAKE/seen"
}

@test "the image is told the names of the caller's variables, and the trial is given those that it knows, without values" {
  printf '%s\n' LEARNING_RATE SUBMISSION_ORG >"$FAKE/forward"
  LEARNING_RATE=1e-3 SUBMISSION_ORG=$'a "b"\nc' SECRET_TOKEN=hush launch
  [ "$status" -eq 0 ]
  grep 'ask forward' "$FAKE/calls" | grep -qw LEARNING_RATE
  trial | grep -q -- '--env LEARNING_RATE --env SUBMISSION_ORG --mount'
  run ! grep -qE '1e-3|hush' "$FAKE/calls"
  run ! grep -q SECRET_TOKEN <(trial)
  grep -qx LEARNING_RATE=1e-3 "$FAKE/environment" # from where docker takes the value
}

@test "a misspelt variable is refused by the image before any trial" {
  echo 2 >"$FAKE/forward-status"
  launch
  [ "$status" -eq 2 ]
  [ ! -e "$FAKE/running" ]
  [ ! -e "$checkout/results" ]
}

@test "paths may hold spaces, quotes, commas, colons and newlines" {
  local odd="$BATS_TEST_TMPDIR/a \"b' ,c:"$'\nd'
  mkdir "$odd"
  DATA_DIR=$odd RESULTS_DIR="$odd/re sults" FAKE_RESULTS="$odd/re sults" launch
  [ "$status" -eq 0 ]
  [ -s "$odd/re sults/result_0.txt" ]
  expected=$(printf '%q' "type=bind,\"source=${odd//\"/\"\"}\",target=/data,readonly")
  grep -qF -- "--mount $expected --mount" <(trial)
}

@test "a configuration is taken from this host, with the file that it takes in" {
  printf 'source ./config_X_common.sh # shared\nexport A=1\nsource ./setup.sh\n' >"$checkout/config_X.sh"
  touch "$checkout/config_X_common.sh" "$checkout/setup.sh"
  CONFIG=config_X.sh launch
  [ "$status" -eq 0 ]
  trial | grep -q 'target=/opt/bert/config_X.sh.,readonly --mount .*target=/opt/bert/config_X_common.sh.,readonly --env CONFIG=config_X.sh '
  run ! grep -q setup.sh <(trial)
}

@test "GPUs: where there are some, those named, or none" {
  launch
  run ! grep -q -- --gpus <(trial)
  printf '#!/bin/sh\n' >"$BATS_TEST_TMPDIR/bin/nvidia-smi"
  for case in "--gpus all" "0,1:--gpus \\\"device=0\\,1\\\"" "all:--gpus all"; do
    rm "$FAKE/calls"
    if [[ $case == *:* ]]; then GPUS=${case%%:*} launch; else launch; fi
    [ "$status" -eq 0 ]
    trial | grep -qF -- "${case#*:} --env RESULT_FILE" || {
      trial
      return 1
    }
  done
  rm "$FAKE/calls"
  GPUS=none launch
  run ! grep -q -- --gpus <(trial)
}

@test "with a rootless engine the container's root is the caller" {
  echo '[name=seccomp,profile=default name=rootless]' >"$FAKE/info"
  launch
  grep -q -- '--user 0:0 ' "$FAKE/calls"
}

@test "without CLEAR_CACHES the trial is told nothing of caches" {
  launch
  run ! grep -q CACHE <(trial)
}

@test "with CLEAR_CACHES the trial is told the kernel's count from before the drop" {
  [ "$(id -u)" -ne 0 ] || skip "as root it would drop this machine's caches; test_docker.py does"
  settings 1 1 -1 5.0.0 data/kjv here
  launch
  [[ $output == *"could not be dropped"* ]]
  trial | grep -qE -- '--env CACHE_DROPS_BEFORE=[0-9]+ '
}

@test "trials are numbered, verified together, and a failed one does not keep the next from running" {
  echo 1 >"$FAKE/statuses"
  NEXP=3 launch
  [ "$status" -eq 1 ]
  [ "$(ls "$FAKE_RESULTS")" = $'result_0.txt\nresult_1.txt\nresult_2.txt' ]
  [ "$(commands | grep -c '^create.*run_and_time.sh$')" -eq 3 ]
  commands | grep -q '^create.*target=/results.,readonly .*sha256:feed python3 -m tools.verify --ruleset 5.0.0 --runs 3 -- /results$'
  [[ $output == *"trial 1 of 3: failed with status 1"* ]]
}

@test "all trials passed is 0; a verdict against them is 1" {
  NEXP=2 launch
  [ "$status" -eq 0 ]
  rm -r "$FAKE_RESULTS"
  echo 1 >"$FAKE/verdict"
  NEXP=2 launch
  [ "$status" -eq 1 ]
}

@test "what is refused, or leaves no log, ends the series" {
  echo 2 >"$FAKE/statuses"
  NEXP=3 launch
  [ "$status" -eq 2 ]
  [ "$(grep -c run_and_time.sh "$FAKE/calls")" -eq 1 ]
  rm -r "$FAKE_RESULTS" "$FAKE/calls"
  echo 125 >"$FAKE/statuses"
  touch "$FAKE/no-log"
  NEXP=3 launch
  [ "$status" -eq 1 ]
  [ "$(grep -c run_and_time.sh "$FAKE/calls")" -eq 1 ]
}

@test "a single trial takes the next free number; several need a folder without logs" {
  mkdir -p "$FAKE_RESULTS"
  echo precious >"$FAKE_RESULTS/result_0.txt"
  launch
  [ "$status" -eq 0 ]
  [ "$(cat "$FAKE_RESULTS/result_0.txt")" = precious ]
  trial | grep -q RESULT_FILE=/results/result_1.txt
  rm "$FAKE/running"
  NEXP=2 launch
  refused "RESULTS_DIR=results/here" "a folder of their own"
}

@test "the log of a trial that was killed is ended" {
  echo 137 >"$FAKE/statuses"
  launch
  [ "$status" -eq 1 ]
  commands | grep -q '^create --name CALL-0-close .*sha256:feed python3 -m mlperf_log_utils close /results/result_0.txt$'
}

@test "bad input is refused by name, value and remedy" {
  NEXP=0 launch
  refused "NEXP=0" "a whole number from 1"
  NEXP="a[\$(touch '$FAKE/ran')]" launch
  refused "NEXP=a["
  [ ! -e "$FAKE/ran" ]
  RESULT_FILE=x launch
  refused "RESULT_FILE=x" "RESULTS_DIR"
  CONFIG=config_absent.sh launch
  refused "CONFIG=./config_absent.sh: no such file" config_CPU_1x2x8x1.sh
  CONFIG=run_with_docker.sh launch
  refused "CONFIG=./run_with_docker.sh" config_X.sh
  DATA_DIR=/absent launch
  refused "DATA_DIR=/absent: no such folder"
  settings 2 0 -1 5.0.0 data/kjv here
  launch
  refused "NUM_NODES=2" "one host"
  settings 1 0 7 5.0.0 data/kjv here
  NEXP=2 launch
  refused "SEED=7 with NEXP=2" "unset SEED"
  touch "$FAKE/no-image"
  IMAGE=absent launch
  refused "IMAGE=absent" "docker build"
}

background() { # until a trial runs
  "$checkout/run_with_docker.sh" >"$FAKE/output" 2>&1 3>&- &
  launcher=$!
}

appears() {
  for _ in {1..200}; do [[ -e $1 ]] && return || sleep 0.05; done
  return 1
}

ended() { # STATUS: the launcher's, soon
  local status=0
  for _ in {1..300}; do kill -0 "$launcher" 2>/dev/null && sleep 0.05; done
  ! kill -0 "$launcher" 2>/dev/null || {
    echo "does not end"
    return 1
  }
  wait "$launcher" || status=$?
  [ "$status" -eq "$1" ] || {
    echo "status $status"
    cat "$FAKE/output"
    return 1
  }
}

@test "a signal stops the running container, no other one, and there is no next trial" {
  touch "$FAKE/endless"
  export NEXP=3
  for signal in TERM:143 HUP:129; do
    rm -rf "$FAKE"/{running,stopped,calls} "$FAKE_RESULTS"
    background
    appears "$FAKE/running"
    kill -s "${signal%:*}" "$launcher"
    ended "${signal#*:}"
    commands | grep -q '^stop --time 30 -- CALL-0$'
    [ "$(grep -c '^create.*run_and_time.sh$' "$FAKE/calls")" -eq 1 ]
    [ "$(tail -1 <(commands))" = "rm --force -- CALL-0" ]
    run ! grep -q close "$FAKE/calls"
  done
}

@test "a signal before the container has started is not lost" {
  touch "$FAKE/endless" "$FAKE/too-early"
  background
  appears "$FAKE/running"
  kill -s TERM "$launcher"
  ended 143
  [ "$(grep -c '^stop' "$FAKE/calls")" -ge 2 ]
}

@test "a signal while a container is made removes it, and nothing is started" {
  touch "$FAKE/slow-create"
  background
  appears "$FAKE/creating"
  kill -s TERM "$launcher"
  ended 143
  [ "$(tail -1 <(commands))" = "rm --force -- CALL-ask-1" ]
  run ! grep -q '^start' "$FAKE/calls"
}

@test "what is stopped or removed bears this call's name, and no two calls share one" {
  NEXP=2 launch
  mine=$(grep -oE 'mlperf-bert-[0-9a-f]{8}-[0-9a-f]{4}-' "$FAKE/calls" | sort -u)
  [ "$(wc -l <<<"$mine")" -eq 1 ]
  [ "$(grep -E '^(stop|rm|start|kill)' "$FAKE/calls" | grep -vc -- "-- $mine")" -eq 0 ]
  NEXP=1 launch
  [ "$(grep -oE 'mlperf-bert-[0-9a-f]{8}-[0-9a-f]{4}-' "$FAKE/calls" | sort -u | wc -l)" -eq 2 ]
}
