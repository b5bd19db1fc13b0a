#!/usr/bin/env bash
# Start node N of the cluster, inside the cluster's namespaces (enter.sh DIR .../node.sh DIR N): its own network, host
# name, mounts and processes. The process that DIR/nN.pid names, seen from there, is the node: kill it, and the node is
# lost with all that runs on it.
set -euo pipefail
dir=$1 number=$2
name=n$number

if [[ ${3:-} == inside ]]; then # the node's first process
  hostname "$name"
  until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
  ip link set lo up
  ip address add "10.77.0.$number/24" dev eth0
  ip link set eth0 up
  # No test drops the machine's page caches; n1 may write into a stand-in, n2 may not.
  mount --bind "$dir/drop_caches.$name" /proc/sys/vm/drop_caches
  [[ $name == n1 ]] || mount -o remount,bind,ro /proc/sys/vm/drop_caches
  slurmd -D -N "$name" &
  wait "$!" # as a shell, it takes in the dead of its namespace meanwhile
  exit
fi

export SLURM_CONF=$dir/slurm.conf
unshare --net --mount --uts --pid --fork --kill-child --mount-proc -- "$0" "$dir" "$number" inside \
  </dev/null >>"$dir/$name.log" 2>&1 &
pid=$!
while [[ $(readlink "/proc/$pid/ns/net") == "$(readlink /proc/self/ns/net)" ]]; do sleep 0.05; done
# With the address that others know, if they do.
ip link delete "$name" 2>/dev/null || true # of a node that was lost
ip link add "$name" type veth peer name eth0 address "02:00:0a:4d:00:0$number" netns "$pid"
ip link set "$name" master bridge up
echo "$pid" >"$dir/$name.pid"
