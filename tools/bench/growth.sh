# shellcheck shell=bash
# What growth is measured on: thin post-LN layers, on the data set of tools/ablation/proxy.sh.
# `python -m tools.bench.growth` sets NUM_LAYERS, MAX_STEPS, GROWTH and SEED.
export SUBMISSION_PLATFORM=CPU_1x1

export NUM_NODES=1
export RANKS_PER_NODE=1
export DEVICE=cpu

export DATA_DIR=data/kjv64
export MAX_LENGTH=64

export NUM_LAYERS=12
export HIDDEN_SIZE=64
export NUM_HEADS=4
export FFN_SIZE=256
export DROPOUT=0.0
export INITIALISATION=relative_offset
export INIT_STD=0.05

export BATCH_SIZE=16
export LEARNING_RATE=1e-3
export BETA_2=0.98
export WARMUP_STEPS=100
export MAX_STEPS=1000 # which is also where the learning rate comes to 0
export CLIP=global_after
export BUCKET_MB=0.1

export EVAL_BATCH_SIZE=256
export EVAL_START_SAMPLES=1000
export EVAL_INTERVAL_SAMPLES=1000
export TARGET_ACCURACY=0.99 # never reached: every run takes all its samples
