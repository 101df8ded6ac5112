"""Ours beside others, each in an environment of its own; and the parts of the sampler alone."""
