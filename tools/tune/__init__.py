"""Tuning: a base configuration and ranges in, the configuration with the fewest samples to target out."""
