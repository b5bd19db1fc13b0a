# shellcheck shell=bash
# One DGX A100, LAMB, batch 448, closed division. NVIDIA's v2.0 submission needed 2.65 M samples on average, 3.00 M at
# most (its result logs, dgxa100_ngc22.04_pytorch).
source ./config_DGXA100_common.sh

export DIVISION=closed
export NUM_NODES=1
export BATCH_SIZE=56          # NVIDIA v2.0 config_DGXA100_1x8x56x1.sh
export LOADING=global_presort # NVIDIA v2.0: the whole global batch sorted by length and exchanged

export OPTIMIZER=lamb
export LEARNING_RATE=0.000425 # NVIDIA v2.0 config and logs
export END_LEARNING_RATE=0.0  # reference
export BETA_1=0.9             # NVIDIA v2.0 config and logs
export BETA_2=0.999           # NVIDIA v2.0 config and logs
export EPSILON=1e-6           # NVIDIA v2.0 logs
export WEIGHT_DECAY=0.01      # NVIDIA v2.0 config; reference convergence points at 448 (its logs say 0.0)
export WARMUP_STEPS=0         # NVIDIA v2.0 config and logs
export START_WARMUP_STEP=0    # NVIDIA v2.0 config and logs
export DECAY_POWER=1.0        # NVIDIA v2.0 logs
export MAX_STEPS=6700         # NVIDIA v2.0 config and logs; the decay ends there

export CLIP=global_before # NVIDIA v2.0: by each rank's norm, before the all-reduce
export MAX_NORM=1.0       # reference
