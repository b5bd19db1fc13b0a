# shellcheck shell=bash
# One DGX H100, LAMB, batch 768, closed division. NVIDIA's v3.0 submission needed 2.55 M samples on average (its result
# logs, dgxh100_ngc23.04_pytorch); v5.0 ran the same values on B200.
source ./config_DGXA100_common.sh # the same eight GPUs a node

export DIVISION=closed
export NUM_NODES=1
export BATCH_SIZE=96          # NVIDIA v2.1 config_DGXH100_1x8x48x1_pack.sh: 48 packs of two samples on average
export LOADING=global_presort # NVIDIA v2.1 packs instead: a batch of 768 on average there, always here

export OPTIMIZER=lamb
export LEARNING_RATE=0.00096 # NVIDIA v2.1 config, v5.0 logs
export END_LEARNING_RATE=0.0 # reference
export BETA_1=0.60466        # NVIDIA v2.1 config, v5.0 logs
export BETA_2=0.85437        # NVIDIA v2.1 config, v5.0 logs
export EPSILON=1e-6          # NVIDIA v5.0 logs
export WEIGHT_DECAY=0.1      # NVIDIA v2.1 config, v5.0 logs
export WARMUP_STEPS=0        # NVIDIA v2.1 config, v5.0 logs
export START_WARMUP_STEP=0   # NVIDIA v2.1 config, v5.0 logs
export DECAY_POWER=1.0       # NVIDIA v5.0 logs
export MAX_STEPS=3680        # NVIDIA v2.1 config, v5.0 logs; the decay ends there

export CLIP=global_before # NVIDIA v2.1: by each rank's norm, before the all-reduce
export MAX_NORM=1.0       # reference
