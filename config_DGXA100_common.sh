# shellcheck shell=bash
# What the DGX files share: eight GPUs a node, and the benchmark's model and target. No scale of its own.
#
# Yours, in the environment (docs/configuration.md): DATA_DIR, INITIAL_CHECKPOINT, SUBMISSION_ORG, SUBMISSION_PLATFORM,
# SUBMISSION_STATUS. INITIAL_CHECKPOINT is the benchmark's model.ckpt-28252 (docs/weights.md): from initial weights
# these schedules are too short.
export RANKS_PER_NODE=8 # GPUs of a DGX A100, H100 or H200
export DEVICE=cuda
export CLEAR_CACHES=1 # training rules: flush the page caches before a run; needs root, the log says whether it worked

export DATA_CHECK=headers # every rank would read the whole data in the clock; `prepare check` has done it before

export MAX_LENGTH=512 # training rules, BERT

export NUM_LAYERS=24 # BERT-large: training rules
export HIDDEN_SIZE=1024
export NUM_HEADS=16
export FFN_SIZE=4096
export DROPOUT=0.1
export PRECISION=bf16 # in place of the published runs' fp16, which loses steps to its loss scale

export TARGET_ACCURACY=0.72    # training rules, BERT
export EVAL_START_SAMPLES=0    # one interval: training rules, evaluation at 0 is skipped
export EVAL_INTERVAL_SAMPLES=0 # training rules: floor(0.05 (230.23 batch + 3,000,000), 25,000)
export EVAL_BATCH_SIZE=16      # NVIDIA v2.0 run_and_time.sh
export GRADIENT_ACCUMULATION_STEPS=1
