"""Measurements of the tools; nothing here is a test."""
