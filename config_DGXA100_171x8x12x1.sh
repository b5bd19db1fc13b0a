# shellcheck shell=bash
# The record run's recipe on 171 DGX A100 (Samsung v2.0, v2.1): ADAM, batch 16,416, open division. 2.94 M samples in
# each of ten runs, 21.4 s (result logs, samsung_supercomputer21_dgxa100_n171_pytorch).
#
# Samsung's ranks drew 4, 2, 2 and 4 samples of the four strata, which makes samples 6 % longer than the corpus; here
# the quotas follow the corpus.
source ./config_DGXA100_common.sh

export DIVISION=open # the rules' closed division allows LAMB only
export NUM_NODES=171
export BATCH_SIZE=12              # Samsung v2.0 config
export LOADING=stratified_presort # Samsung v2.0: quotas of four length strata, then sorted and dealt inside each node
export NUM_STRATA=4               # Samsung v2.0: 1-128, 129-256, 257-384, 385-512; 16 are more level (docs/plan.md)

export OPTIMIZER=adam
export LEARNING_RATE=0.00039299421615882676    # Samsung v2.0 logs
export END_LEARNING_RATE=0.0000494549100544884 # Samsung v2.0 config
export BETA_1=0.8003575444254268               # Samsung v2.0 logs
export BETA_2=0.8174653681457493               # Samsung v2.0 logs
export EPSILON=1e-9                            # Samsung v2.0 logs
export WEIGHT_DECAY=0.0028861703130042965      # Samsung v2.0 logs
export SCHEDULE=record                         # Samsung v2.0: warm-up counts from START_WARMUP_STEP, the decay does not
export WARMUP_STEPS=82                         # Samsung v2.0 logs
export START_WARMUP_STEP=-16                   # Samsung v2.0 logs
export DECAY_STEPS=179                         # Samsung v2.0 config (lr_max_steps)
export DECAY_POWER=1.0                         # Samsung v2.0 logs
export MAX_STEPS=299                           # Samsung v2.0 logs; all ten runs stopped at 179

export CLIP=bucket_before # Samsung v2.0: each DDP bucket by itself, before its all-reduce
export MAX_NORM=1.0       # Samsung v2.0: each of 22 buckets to 1 / sqrt(22)
export BUCKET_MB=50       # Samsung v2.0: 25 MiB of fp16 gradients; ours are fp32, so that the 22 buckets stay 22
