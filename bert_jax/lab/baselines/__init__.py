"""Train what came before BERT: skip-gram vectors, a bidirectional LSTM, an encoder for translation.

In: a store and the settings of a kind. Out: a workdir with weights, vectors.npz (skip-gram) and
summary.json, which the same command resumes; scores of a task on the frozen vectors.

Read training.py (rows of the text, the workdir and the training loop), then skipgram.py, bilm.py
and cove.py. vectors.py computes frozen vectors, frozen_task.py learns a task on them.
"""
