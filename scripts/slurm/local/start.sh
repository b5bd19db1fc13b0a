#!/usr/bin/env bash
# Start a Slurm cluster of two nodes on this machine, for tests: munged, slurmctld and a slurmd for each node.
#
#   scripts/slurm/local/start.sh DIR               DIR is made, and holds all that the cluster writes; a short path
#   scripts/slurm/local/enter.sh DIR sbatch ...    a command on the cluster's login host, from the present folder
#   scripts/slurm/local/stop.sh DIR
#
# The cluster lives in namespaces of its own (network, mounts, processes, host name), each node in further ones, so that
# a node has its own address, host name and processes, and nothing of it can be left when its first process is gone.
# Needs root, slurm-wlm, munge, iproute2 and util-linux.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
dir=$(realpath -m -- "${1:?usage: start.sh DIR}")

fail() {
  printf 'start.sh: %s\n' "$*" >&2
  exit 1
}

[[ $dir != *[[:space:]\#]* ]] || fail "$dir: Slurm's configuration cannot name it; take a path without spaces"
mkdir -- "$dir" || fail "$dir: must be new"
for folder in state spool.n1 spool.n2 small; do mkdir "$dir/$folder"; done
sed "s#@DIR@#$dir#g" "$here/slurm.conf.in" >"$dir/slurm.conf"
echo "CgroupPlugin=cgroup/v1" >"$dir/cgroup.conf" # 22.05 looks for one, though none is used
touch "$dir/drop_caches.n1" "$dir/drop_caches.n2"
cat >"$dir/hosts" <<HOSTS
127.0.0.1 localhost
10.77.0.254 login
10.77.0.1 n1
10.77.0.2 n2
::ffff:10.77.0.1 n1
::ffff:10.77.0.2 n2
HOSTS
(umask 077 && head -c 128 /dev/urandom >"$dir/munge.key")

# shellcheck disable=SC2024 # the log is ours
setsid unshare --net --mount --uts --pid --fork --kill-child --mount-proc -- "$here/cluster.sh" "$dir" \
  </dev/null >"$dir/cluster.log" 2>&1 &
echo "$!" >"$dir/holder.pid"

for ((tries = 0; tries < 300; tries++)); do
  if [[ $("$here/enter.sh" "$dir" sinfo --noheader --states=idle --format=%D 2>/dev/null) == 2 ]]; then
    exit 0
  fi
  kill -0 "$(<"$dir/holder.pid")" 2>/dev/null || break
  sleep 0.1
done
tail -n 5 "$dir"/*.log >&2
"$here/stop.sh" "$dir"
fail "the nodes did not come up within 30 s"
