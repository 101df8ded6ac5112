"""Plan a run on a TPU slice without having the slice: compile, estimate, price, choose a size.

In: a config and the name of a slice; for a budget also losses of smaller runs. Out: a Plan (the
compiler's estimate), or the model size and token count to train. Read `plan`, then `slices`,
`aot_compile`, `estimate`, `hlo`, `hlo_cost`, `chip_prices`, `plan_report`; for a budget `law`,
`fit`, `candidates`, `budget`, `budget_report`.
"""
