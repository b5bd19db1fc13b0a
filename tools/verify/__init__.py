"""A result log in, a verdict out. `python -m tools.verify LOG`."""
