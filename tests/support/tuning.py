"""The base of studies that run nothing, and a plan of growth with placeholders."""

from __future__ import annotations

BASE = {
    "DEVICE": "cpu",
    "BATCH_SIZE": "8",
    "LEARNING_RATE": "1e-3",
    "MAX_STEPS": "1000",
    "TARGET_ACCURACY": "0.4",
    "EVAL_INTERVAL_SAMPLES": "200",
    "MAX_LENGTH": "32",
    "WARMUP_STEPS": "10",
}
SIZES = {"NUM_LAYERS": "4", "HIDDEN_SIZE": "16", "NUM_HEADS": "2", "FFN_SIZE": "64", "DECAY_STEPS": "160"}
SPLIT = "mslt:2,4@{first},0.05+joint:embeddings={embeddings}"
