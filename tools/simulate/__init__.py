"""Simulate a training run on a described cluster: `python -m tools.simulate`."""
