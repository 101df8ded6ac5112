"""Time a training step, or plan it for TPU slices without one: compile, estimate, price.

In: a config, and devices or the name of a slice. Out: a StepReport (measured here) or a Plan (the
compiler's estimate). Measuring: `measure`, `measure_report`, `synthetic`. Planning: `plan`, then
`slices`, `aot_compile`, `estimate`, `hlo`, `hlo_cost`, `prices`, `preemptions` and `plan_report`.
"""
