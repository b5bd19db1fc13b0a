# shellcheck shell=bash
# The default run (config_CPU_1x2x8x1.sh) on two nodes of two gloo ranks, for Slurm: the same model, data, global batch
# and target. Clipping is by rank, so half as many samples are clipped together.
export SUBMISSION_PLATFORM=CPU_2x2

export NUM_NODES=2
export RANKS_PER_NODE=2
export DEVICE=cpu

export DATA_DIR=data/kjv
export MAX_LENGTH=208

export NUM_LAYERS=2
export HIDDEN_SIZE=128
export NUM_HEADS=4
export FFN_SIZE=512
export DROPOUT=0.0
export INITIALISATION=relative_offset
export INIT_STD=0.05

export BATCH_SIZE=4
export LEARNING_RATE=2.2e-3
export BETA_2=0.98
export WARMUP_STEPS=60
export DECAY_STEPS=2378 # the rate is a twentieth then, and stays there
export END_LEARNING_RATE=1.1e-4
export MAX_STEPS=3000
export BUCKET_MB=1 # more than one bucket, small as the model is

export TARGET_ACCURACY=0.39
export EVAL_START_SAMPLES=24000
export EVAL_INTERVAL_SAMPLES=800
