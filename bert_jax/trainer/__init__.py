"""Run training on the host: prepare a run, feed it, dispatch its steps, save, report.

In: a resolved config, a store (or a task's examples) and a workdir. Out: checkpoints, records and
an exit code. bert_jax.train and bert_jax.finetune call it in this order:
setup builds and checks the run; run.train_to_exit_code calls loop, which trains, and returns the
exit code.
loop uses compile (the jitted step), feed and prefetch (batches), data_check (digests of the store's
files), readings (results and times of steps), heldout and baselines (evaluation, and scores without
a network), bad_steps (roll-backs), summary (the first block on the screen).
fresh_start protects the records of a lost run, and begins a branch of another run.
"""
