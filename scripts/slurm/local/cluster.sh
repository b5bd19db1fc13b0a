#!/usr/bin/env bash
# The first process of the cluster's namespaces, started by start.sh; ends never by itself.
set -euo pipefail
dir=$1
export SLURM_CONF=$dir/slurm.conf

hostname login
mount --bind "$dir/hosts" /etc/hosts
mount -t tmpfs -o size=96k tmpfs "$dir/small" # a disk to fill
ip link set lo up
ip link add bridge type bridge
ip address add 10.77.0.254/24 dev bridge
ip link set bridge up

munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
  --log-file="$dir/munged.log" --seed-file="$dir/munged.seed"
slurmctld -c
for number in 1 2; do "${0%/*}/node.sh" "$dir" "$number"; done
while :; do
  sleep 1000 &
  wait "$!"
done # a shell that waits takes in the dead of its namespace
