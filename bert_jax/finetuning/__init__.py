"""Fine-tune a pre-trained encoder on a task; run grids of such runs, and probes of checkpoints.

In: a FinetuneConfig, a checkpoint, and a task of bert_jax/tasks.
Out: a `Setup` for the trainer's loop; after the run, predictions in the task's format.

Read setup.py (checkpoint + task -> run), feed.py (batches), objectives.py (losses) and predict.py.
grid.py runs many fine-tunings (grid_runs.py names them, grid_report.py compares them); probe.py
follows a pre-training run; frozen_ner.py and bilstm.py learn on the vectors of a frozen model.
"""
