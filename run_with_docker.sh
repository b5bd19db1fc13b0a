#!/usr/bin/env bash
# Trials of one configuration on this host, each in a fresh container of the image that Dockerfile makes.
#
#   ./run_with_docker.sh                                            one trial of the default configuration
#   NEXP=10 CONFIG=config_X.sh DATA_DIR=/data ./run_with_docker.sh  ten, verified together at the end
#   LEARNING_RATE=1e-3 ./run_with_docker.sh                         the caller's variables win over the file's
#
#   IMAGE        the image (mlperf-bert)                      NEXP  the number of trials (1)
#   CONFIG       this host's file (config_CPU_1x2x8x1.sh)     GPUS  all, none, or as in 0,1; unset: all that there are
#   DATA_DIR     this host's folder; read only
#   RESULTS_DIR  folder for the logs (results/<SUBMISSION_PLATFORM>)
#
# Needs bash and docker; docs/docker.md has more. Exit status: 0 every trial reached the target and all logs pass,
# 1 not, 2 the input was refused, 128 + n ended by signal n.
set -euo pipefail
unset CDPATH
[[ ${BASH_SOURCE[0]} != */* ]] || cd -- "${BASH_SOURCE[0]%/*}/"

say() { printf 'run_with_docker: %s\n' "$*" >&2; }
refuse() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

image=${IMAGE:-mlperf-bert}
num_trials=${NEXP:-1}
config=${CONFIG:-config_CPU_1x2x8x1.sh}

[[ $num_trials =~ ^[1-9][0-9]{0,3}$ ]] || refuse "NEXP=$num_trials: expected a whole number from 1 to 9999"
[[ -z ${RESULT_FILE:-} ]] || refuse "RESULT_FILE=$RESULT_FILE: RESULTS_DIR names the folder for all trials; unset it"
[[ $config == */* ]] || config=./$config
[[ -f $config && -r $config ]] || refuse "CONFIG=$config: no such file; take one of: $(echo config_*.sh)"
[[ ${config##*/} =~ ^config[A-Za-z0-9_.-]*\.sh$ ]] || refuse "CONFIG=$config: a name of the form config_X.sh is needed"
command -v docker >/dev/null || refuse "there is no docker command on this host; ./run_and_time.sh runs without"
if ! image_id=$(docker image inspect --format '{{.Id}}' -- "$image"); then
  refuse "IMAGE=$image: not on this host; docker build -t mlperf-bert ."
fi

# --- one container at a time, of a name that no other call has

call=$(</proc/sys/kernel/random/uuid)
call=mlperf-bert-${call:0:13}
container=
scratch=$(mktemp -d)
received=0
# shellcheck disable=SC2317 # called by the traps
note() { ((received)) || received=$1; }
# shellcheck disable=SC2317
clean_up() {
  trap '' HUP INT TERM
  [[ ! $container ]] || docker rm --force -- "$container" >/dev/null 2>&1 || true
  rm -rf -- "$scratch"
}
trap clean_up EXIT
trap 'note 1' HUP
trap 'note 2' INT
trap 'note 15' TERM

set -m # a command in the background has a process group of its own: a Ctrl-C reaches it through us only

# Run a command to its end, whatever signal comes meanwhile.
shielded() {
  "$@" </dev/null &
  local pid=$!
  while kill -0 "$pid" 2>/dev/null; do wait "$pid" || true; done
  wait "$pid"
}

# contain NAME FLAG… IMAGE COMMAND…: its exit status. After a signal the container is stopped, and we exit.
contain() {
  container=$call-$1
  shift
  local status=0 pid
  shielded docker create --name "$container" "${common[@]}" "$@" >"$scratch/id" || status=$?
  if ((status == 0 && received == 0)); then
    docker start --attach -- "$container" </dev/null &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
      if ((received)); then # again and again: it may not have started yet
        shielded docker stop --time 30 -- "$container" >/dev/null 2>&1 || true
        sleep 0.2 || true
      else
        wait "$pid" || true
      fi
    done
    wait "$pid" || status=$?
  elif ((status)); then
    status=125 # docker's own for a container that cannot be made
  fi
  shielded docker rm --force -- "$container" >/dev/null 2>&1 || true # gone already, unless something went wrong
  container=
  return "$status"
}

stop_if_signalled() {
  ((received == 0)) || {
    say "stopped by signal $received"
    exit "$((128 + received))"
  }
}

# --- what every container is given

user=$(id -u):$(id -g)
options=$(docker info --format '{{.SecurityOptions}}' 2>/dev/null) || true
[[ $options != *name=rootless* ]] || user=0:0 # that is the caller there
# No network is needed, but names for the container itself and for the address that torch looks up.
common=(--rm --init --network none --hostname mlperf-bert)
common+=(--add-host mlperf-bert:127.0.0.1 --add-host loopback:::ffff:127.0.0.1)
common+=(--security-opt no-new-privileges --shm-size 8g --user "$user")
for group in $(id -G); do
  common+=(--group-add "$group")
done

# The flag for a mount: comma-separated fields, quoted so that a path may hold anything.
mount() { # SOURCE TARGET [readonly]
  local path=$1 quote='"'
  [[ $path == /* ]] || path=$PWD/$path
  mounts+=(--mount "type=bind,\"source=${path//$quote/$quote$quote}\",target=$2${3:+,$3}")
}

# This host's configuration takes the place of the image's, with what it takes in.
mounts=()
mount "$config" "/opt/bert/${config##*/}" readonly
sourced='^[[:blank:]]*source[[:blank:]]+\./(config[A-Za-z0-9_.-]*\.sh)'
while IFS= read -r line || [[ $line ]]; do
  [[ $line =~ $sourced ]] || continue
  [[ ! -f ./${BASH_REMATCH[1]} ]] || mount "./${BASH_REMATCH[1]}" "/opt/bert/${BASH_REMATCH[1]}" readonly
done <"$config"
common+=("${mounts[@]}" --env "CONFIG=${config##*/}")

# Exactly those variables of the caller that the image's configuration knows; their values never show in a command line.
mapfile -t exported < <(compgen -e)
status=0
contain ask-1 "$image_id" python3 -m scripts.docker.ask forward "${exported[@]}" >"$scratch/names" || status=$?
stop_if_signalled
((status == 0)) || exit "$((status == 2 ? 2 : 1))"
while IFS= read -r name; do
  common+=(--env "$name")
done <"$scratch/names"

contain ask-2 "$image_id" python3 -m scripts.docker.ask settings >"$scratch/settings" || status=$?
stop_if_signalled
((status == 0)) || exit "$((status == 2 ? 2 : 1))"
{
  IFS= read -r num_nodes
  IFS= read -r clear_caches
  IFS= read -r seed
  IFS= read -r ruleset
  IFS= read -r data_dir_of_file
  IFS= read -r platform
} <"$scratch/settings"
data_dir=${DATA_DIR:-$data_dir_of_file}
results=${RESULTS_DIR:-results/$platform}

((num_nodes == 1)) || refuse "NUM_NODES=$num_nodes: this launcher is for one host"
((num_trials == 1 || seed < 0)) ||
  refuse "SEED=$seed with NEXP=$num_trials: every trial needs a seed of its own; unset SEED"
[[ -d $data_dir ]] || refuse "DATA_DIR=$data_dir: no such folder; docs/docker.md tells how to prepare one"
mkdir -p -- "$results" || refuse "RESULTS_DIR=$results: cannot create the folder"
[[ -w $results ]] || refuse "RESULTS_DIR=$results: cannot write there"
first=0
while [[ -e $results/result_$first.txt || -L $results/result_$first.txt ]]; do
  first=$((first + 1))
done
((num_trials == 1 || first == 0)) ||
  refuse "RESULTS_DIR=$results: holds logs already; $num_trials trials that are judged together need a folder of their own"

mounts=()
mount "$data_dir" /data readonly
mount "$results" /results
with_data=("${mounts[@]}" --env DATA_DIR=/data)
mounts=()
mount "$results" /results
with_results=("${mounts[@]}")
mounts=()
mount "$results" /results readonly
judging=("${mounts[@]}")

case ${GPUS-auto} in
none) ;;
all) with_data+=(--gpus all) ;;
auto) ! nvidia-smi -L >/dev/null 2>&1 || with_data+=(--gpus all) ;;
*) with_data+=(--gpus "\"device=$GPUS\"") ;;
esac

# --- the trials

# Drop the page caches, which a container cannot. run_and_time.sh takes the kernel's count of drops for the truth.
clear_caches() {
  local name count
  while read -r name count; do
    [[ $name != drop_pagecache ]] || printf '%s\n' "$count"
  done </proc/vmstat
  sync
  { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null || say "the page caches could not be dropped; that needs root"
}

num_failed=0
for ((trial = 0; trial < num_trials; trial++)); do
  number=$((first + trial))
  log=$results/result_$number.txt
  flags=("${with_data[@]}" --env "RESULT_FILE=/results/result_$number.txt")
  [[ $clear_caches == 0 ]] || flags+=(--env "CACHE_DROPS_BEFORE=$(clear_caches)")
  stop_if_signalled
  say "trial $((trial + 1)) of $num_trials: container $call-$number, log $log"
  status=0
  contain "$number" "${flags[@]}" "$image_id" ./run_and_time.sh || status=$?
  if [[ -s $log ]] && ((status > 2 && status != 143)); then # killed; by TERM it ends its log itself
    interrupted=$received
    received=0
    ending=(python3 -m mlperf_log_utils close "/results/${log##*/}")
    contain "$number-close" "${with_results[@]}" "$image_id" "${ending[@]}" || true
    ((received)) || received=$interrupted
  fi
  stop_if_signalled
  ((status)) || continue
  say "trial $((trial + 1)) of $num_trials: failed with status $status"
  num_failed=$((num_failed + 1))
  if ((status == 2)) || [[ ! -s $log ]]; then # the next ones would fare alike
    exit "$((status == 2 ? 2 : 1))"
  fi
done

if ((num_trials > 1)); then
  say "verifying the $num_trials logs in $results"
  verifying=(python3 -m tools.verify --ruleset "$ruleset" --runs "$num_trials" -- /results)
  contain verify "${judging[@]}" "$image_id" "${verifying[@]}" || num_failed=$((num_failed + 1))
  stop_if_signalled
fi
exit "$((num_failed > 0))"
