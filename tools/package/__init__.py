"""A commit and result folders in, a submission tree that passes the verifier out. `python -m tools.package build`."""
