"""Ours beside others, each in an environment of its own."""
