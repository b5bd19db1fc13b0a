#!/usr/bin/env bash
# Make a base image without a registry, for tests: Debian with Python and pip, as a tar file for `docker import`.
#
#   scripts/docker/base.sh FILE
#
# Needs root and debootstrap, and takes minutes. FILE appears when it is whole.
set -euo pipefail

if [[ $# != 1 ]]; then
  sed -n 's/^#   //p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
mkdir -p -- "$(dirname -- "$1")"
scratch=$(mktemp -d -- "$1.XXXXXX")
trap 'rm -rf --one-file-system -- "$scratch"' EXIT
if ! debootstrap --variant=minbase --include=python3,python3-pip bookworm "$scratch/root" >"$scratch/log" 2>&1; then
  echo "error: debootstrap failed; its last words:" >&2
  tail -n 5 -- "$scratch/log" >&2
  exit 1
fi
rm -rf -- "$scratch"/root/var/cache/apt/* "$scratch"/root/var/lib/apt/lists/*
tar --one-file-system -C "$scratch/root" -cf "$scratch/tar" .
mv -- "$scratch/tar" "$1"
