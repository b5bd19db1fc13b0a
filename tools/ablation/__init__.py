"""The ablation: optimizers, clip variants and global batches in, samples to target of each combination out."""
