# shellcheck shell=bash
# Eight DGX A100, LAMB, batch 3,072, closed division. NVIDIA's v2.0 submission needed 3.22 M samples on average (its
# result logs, dgxa100_n8_ngc22.04_pytorch).
source ./config_DGXA100_common.sh

export DIVISION=closed
export NUM_NODES=8
export BATCH_SIZE=48          # NVIDIA config_DGXA100_8x8x48x1.sh
export LOADING=global_presort # NVIDIA v2.0: the whole global batch sorted by length and exchanged

export OPTIMIZER=lamb
export LEARNING_RATE=0.0015  # NVIDIA v2.0 logs
export END_LEARNING_RATE=0.0 # reference
export BETA_1=0.83           # NVIDIA v2.0 logs
export BETA_2=0.925          # NVIDIA v2.0 logs
export EPSILON=1e-6          # NVIDIA v2.0 logs of the 1-node run
export WEIGHT_DECAY=0.01     # NVIDIA's default; reference convergence points at 3,072
export WARMUP_STEPS=100      # NVIDIA config_DGXA100_8x8x48x1.sh
export START_WARMUP_STEP=-25 # NVIDIA config_DGXA100_8x8x48x1.sh
export DECAY_POWER=1.0       # NVIDIA v2.0 logs of the 1-node run
export DECAY_START_STEP=0    # NVIDIA's scheduler: the decay line runs from step 0
export MAX_STEPS=1271        # NVIDIA config_DGXA100_8x8x48x1.sh; the decay ends there

export CLIP=global_before # NVIDIA v2.0: by each rank's norm, before the all-reduce
export MAX_NORM=1.0       # reference
