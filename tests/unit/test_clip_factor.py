"""The clip's norm is exact for buckets as large as BERT-large's embeddings."""

from __future__ import annotations

import torch

from benchmarks.bert.comm.clip import clip_factor


def test_the_norm_of_a_large_bucket_is_exact_to_fp32() -> None:
    """One running fp32 sum, as torch.linalg.vector_norm takes on a CPU, is 2e-4 short at this size."""
    gradient_P = torch.randn(8_000_000, generator=torch.Generator().manual_seed(0))
    exact = gradient_P.double().square().sum().sqrt().item()
    assert abs(clip_factor(gradient_P, 1.0).item() * exact - 1) < 1e-5
