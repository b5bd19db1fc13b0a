#!/usr/bin/env bash
# Health of an image, or of any machine: the packages import, and one training step on made text ends in a log that
# passes. Leaves nothing behind. One large step is enough for some accuracy, so that the target, 0.001, is reached.
set -euo pipefail
unset CDPATH
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

python=$(./setup.sh)
export PYTHON=$python PYTHONPATH=$PWD
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

"$python" - <<'PYTHON'
import google_crc32c, h5py, mlperf_logging, numpy, safetensors, tokenizers, torch

for package in (torch, h5py, numpy, tokenizers):
    print("check:", package.__name__, package.__version__)
print("check:", torch.cuda.device_count(), "GPUs")
PYTHON

# Documents of five sentences of eight words.
text() {
  local words=(one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen)
  RANDOM=$2
  for ((sentence = 1; sentence <= 5 * $1; sentence++)); do
    for _ in {1..7}; do printf '%s ' "${words[RANDOM % ${#words[@]}]}"; done
    printf '%s.\n' "${words[RANDOM % ${#words[@]}]}"
    ((sentence % 5)) || echo
  done
}
text 60 1 >"$scratch/train.txt"
text 20 2 >"$scratch/eval.txt"
prepare() { "$python" -m benchmarks.bert.prepare "$@" >"$scratch/prepare" || { cat "$scratch/prepare" && exit 1; }; }
prepare vocabulary "$scratch/train.txt" --size 60 --out "$scratch/vocab.txt"
for part in train eval; do
  prepare samples "$scratch/$part.txt" --vocab "$scratch/vocab.txt" --out "$scratch/$part" \
    --max-length 32 --max-predictions 5 --shards 1 --duplicates 1 --processes 1
done

echo 'export SUBMISSION_PLATFORM=check' >"$scratch/config_check.sh"
env CONFIG="$scratch/config_check.sh" DATA_DIR="$scratch" RESULT_FILE="$scratch/result.txt" \
  NUM_NODES=1 RANKS_PER_NODE=1 MAX_LENGTH=32 NUM_LAYERS=1 HIDDEN_SIZE=32 NUM_HEADS=2 FFN_SIZE=64 \
  BATCH_SIZE=8 LEARNING_RATE=1e-1 DROPOUT=0.0 MAX_STEPS=1 DECAY_STEPS=100 \
  EVAL_START_SAMPLES=8 EVAL_INTERVAL_SAMPLES=8 TARGET_ACCURACY=0.001 SEED=1 OMP_NUM_THREADS=1 \
  ./run_and_time.sh
