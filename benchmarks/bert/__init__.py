"""BERT, from text to a result log. The stages, in the order in which data flows through them:

prepare/      text -> documents -> WordPiece -> masked samples -> shards          untimed
config, world the environment -> one frozen Config; who this process is
data/         shards -> lengths -> strata -> plan -> packed batches
model/        a packed batch -> logits
loss          logits -> loss
comm/         gradient buckets -> clipped, averaged buckets, during backward
optim/        averaged gradient, learning rate of the step -> new weights
schedule, evaluate   samples so far -> is an evaluation due; held-out samples -> accuracy
record, ../../mlperf_log_utils   what happened -> the result log
trainer       builds what the loop works with, before the clock starts
train         the loop, and the clock around it
launch        one node's ranks, started and ended together
bench/        what counting reaches; how fast a step is                            untimed
"""
