# shellcheck shell=bash disable=SC2153,SC2154 # its names are those of the other files too
# For run.sub: in a container of pyxis and enroot where CONTAINER_IMAGE names one, else plain.

container=() # options of srun

is_contained() { [[ -n ${CONTAINER_IMAGE:-} ]]; }

# Import the image on each node, once for all trials.
enter_container() {
  mount_in_container
  srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --export=ALL "${container[@]}" \
    --job-name=import true </dev/null ||
    refuse "CONTAINER_IMAGE=$CONTAINER_IMAGE: cannot be imported on each node"
}

# mount_in_container [PATH[:ro] ...]: the project and these, each under its own path.
mount_in_container() {
  local mounts=$PWD:$PWD mount config
  config=$(cd -- "$(dirname -- "$CONFIG")" && pwd)
  [[ $config == "$PWD" ]] || set -- "$config:ro" "$@"
  for mount in "$PWD" "$@"; do
    [[ ${mount%:ro} != *[,:]* ]] || refuse "$mount: a container's mount cannot have a comma or a colon in its path"
  done
  for mount in "$@"; do mounts+=,${mount%:ro}:$mount; done
  container=(
    --container-image="$CONTAINER_IMAGE"
    --container-name="bert-$SLURM_JOB_ID" # of this job alone; kept from trial to trial
    --container-mounts="$mounts"
    --container-workdir="$PWD"
    --no-container-mount-home
  )
}

# Python where the ranks have it: here, or in the container on this host.
run_python() {
  if is_contained; then
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME" --export=ALL "${container[@]}" \
      --job-name=python "${PYTHON:-python3}" "$@" </dev/null
  else
    "$PYTHON" "$@"
  fi
}

# Remove the job's own container, by the two names that pyxis gives it, on this host and where a step can still go.
leave_container() {
  is_contained || return 0
  # shellcheck disable=SC2016 # for the other shell
  local remove=('for name; do enroot remove --force "$name"; done >/dev/null 2>&1 || true' sh
    "pyxis_bert-$SLURM_JOB_ID" "pyxis_${SLURM_JOB_ID}_bert-$SLURM_JOB_ID")
  bash -c "${remove[@]}" </dev/null
  [[ -n $ended_by ]] || timeout 60 srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
    --job-name=remove bash -c "${remove[@]}" </dev/null || true
}
