"""Fine-tune a pre-trained encoder on a task.

In: a FinetuneConfig, a checkpoint, and a task of bert_jax/tasks.
Out: a `Setup` for the trainer's loop.

Read setup.py (checkpoint + task -> run), feed.py (batches), objectives.py (losses) and prune.py.
"""
