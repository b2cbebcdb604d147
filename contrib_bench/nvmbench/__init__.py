"""Shared machinery of the benchmark runner and of the demo."""
