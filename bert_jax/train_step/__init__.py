"""Compute one training step: loss of an objective, gradients, update, guard. All of it is jitted.

In: a TrainState and a batch on devices. Out: the next TrainState and sums for the metrics.
Read step, objectives, optimizers, schedule, mup, guard, state, metrics.
"""
