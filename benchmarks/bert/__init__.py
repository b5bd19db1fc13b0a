"""BERT, from text to a result log. The stages, in the order in which data flows through them:

prepare/      text -> documents -> WordPiece -> masked samples -> shards          untimed
config, world the environment -> one frozen Config; who this process is
contradictions, division   what a Config's values do not allow each other, and the rules do not allow them
data/         shards -> lengths -> strata -> plan -> packed batches
model/        a packed batch -> logits
weights/      published weights -> a model, and back
loss          logits -> loss
comm/         gradient buckets -> clipped, averaged buckets, during backward
optim/        averaged gradient, learning rate of the step -> new weights
schedule, evaluate   samples so far -> is an evaluation due; held-out samples -> accuracy
record, ../../mlperf_log_utils   what happened -> the result log
trainer, warm_up   what a step works with, built before the clock starts; one step
checkpoint/   a trainer between two steps -> disk, and back
random_states  the generators of dropout, of each rank that a process acts as
growth/       which layers exist and train at which step; the trainer brought there
profile       a window of steps -> a Chrome trace of each rank
train, judge  the loop, and the clock around it; what an evaluation means for the run
launch        one node's ranks, started and ended together
bench/        what counting reaches; how fast a step is                            untimed
"""
