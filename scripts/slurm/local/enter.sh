#!/usr/bin/env bash
# Run a command on the login host of the cluster that start.sh started with this DIR.
set -euo pipefail
dir=$(realpath -- "${1:?usage: enter.sh DIR COMMAND ...}")
shift
holder=$(<"$dir/holder.pid")
first=$(<"/proc/$holder/task/$holder/children") # the holder itself lives outside
exec nsenter --target "${first% }" --net --mount --uts --pid --wd="$PWD" env SLURM_CONF="$dir/slurm.conf" "$@"
