#!/usr/bin/env bash
# Stop the cluster that start.sh started with this DIR. With its first process the kernel ends all others and takes down
# their network and mounts; DIR stays.
set -euo pipefail
dir=$(realpath -- "${1:?usage: stop.sh DIR}")
pid=$(<"$dir/holder.pid")

# The number may be another process's by now: the one meant has DIR among its arguments.
is_ours() { tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep --quiet --line-regexp --fixed-strings -- "$dir"; }

if is_ours; then
  kill -s KILL "$pid"
  for ((tries = 0; tries < 100; tries++)); do
    is_ours || exit 0
    sleep 0.1
  done
  echo "stop.sh: process $pid does not end" >&2
  exit 1
fi
