"""Time a training step on the devices of this machine.

In: a config. Out: a StepReport, printed by `measure_report`. Read `measure`, then `synthetic` (rows
without a store) and `measure_report`.
"""
