#!/usr/bin/env bash
# A Docker engine of one's own, for tests: all that it keeps is in FOLDER, and it makes no bridge and no firewall rule.
#
#   scripts/docker/engine.sh start FOLDER [GROUP]   then DOCKER_HOST=unix://FOLDER/docker.sock; GROUP may use it too
#   scripts/docker/engine.sh stop FOLDER
#
# Needs root and dockerd. STORAGE_DRIVER chooses how it keeps layers; by default the engine chooses.
set -euo pipefail

usage() {
  sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

start() {
  mkdir -p -- "$folder"/{data,exec}
  local options=(--data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/dockerd.pid")
  options+=(--host "unix://$folder/docker.sock" --bridge none --iptables=false --ip6tables=false)
  [[ -z ${1:-} ]] || options+=(--group "$1")
  [[ -z ${STORAGE_DRIVER:-} ]] || options+=(--storage-driver "$STORAGE_DRIVER")
  setsid dockerd "${options[@]}" >"$folder/dockerd.log" 2>&1 </dev/null &
  local engine=$!
  for _ in {1..120}; do
    if docker --host "unix://$folder/docker.sock" version >/dev/null 2>&1; then
      echo "engine: process $(<"$folder/dockerd.pid")"
      return
    fi
    kill -0 "$engine" 2>/dev/null || break
    sleep 0.5
  done
  echo "error: dockerd does not answer; the end of $folder/dockerd.log:" >&2
  tail -n 5 -- "$folder/dockerd.log" >&2
  stop
  exit 1
}

# Ends this folder's engine only, with its containers, and what is still mounted there.
stop() {
  local pid=
  [[ ! -f $folder/dockerd.pid ]] || pid=$(<"$folder/dockerd.pid")
  if [[ $pid ]] && tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qxF -- "$folder/data"; then
    kill -s TERM "$pid"
    for _ in {1..120}; do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.25
    done
    kill -s KILL "$pid" 2>/dev/null || true
  fi
  local mounted
  while IFS= read -r mounted; do
    umount -- "$mounted" || true
  done < <(awk -v under="$folder/" 'index($2, under) == 1 { print $2 }' /proc/mounts | sort -r)
}

[[ $# -ge 2 ]] || usage
mkdir -p -- "$2"
folder=$(cd -- "$2" && pwd -P)
case $1 in
start) start "${3:-}" ;;
stop) stop ;;
*) usage ;;
esac
