"""Time a training step on the devices of this machine, and check that the machine is fit for a run.

In: a config. Out: a StepReport, printed by `measure_report`, or a CheckResult; for a budget of
time, the config of a run. Read `measure`, then `measure_report` and `checks`; for a budget
`dial_settings` (a size's config), `dial` (the choice) and `dial_run` (here, on a workdir).
"""
