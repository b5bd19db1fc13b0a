# shellcheck shell=bash
# The ablation's model and data: a very small BERT on the King James Bible in samples of 64 tokens of 1,024 kinds.
# `python -m tools.ablation` sets what depends on the cell: optimizer, clip, rate, ranks, steps and evaluations.
export SUBMISSION_PLATFORM=CPU_1x1

export NUM_NODES=1
export RANKS_PER_NODE=1
export DEVICE=cpu

export DATA_DIR=data/kjv64
export MAX_LENGTH=64

export NUM_LAYERS=1
export HIDDEN_SIZE=64
export NUM_HEADS=2
export FFN_SIZE=256
export DROPOUT=0.0
export INITIALISATION=relative_offset
export INIT_STD=0.05

export BATCH_SIZE=8 # the clip unit: the samples of one virtual rank
export BETA_2=0.98
export BUCKET_MB=0.1 # four buckets

export EVAL_BATCH_SIZE=256
# Always guessing the most frequent token is right 0.064 times, where a run stands still at first. At batch 64, ADAM with a
# rate of 3e-3, decaying over 40,000 samples, comes to 0.13 after 8,000, to 0.19 after 12,000 and to 0.28 at the end,
# without clipping and by bucket alike; LAMB at 6e-3 to 0.14 after 16,000.
export TARGET_ACCURACY=0.13
