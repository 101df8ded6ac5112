"""Train what came before BERT on the same store: skip-gram vectors, a bidirectional LSTM.

In: a store and the settings of a kind. Out: a folder that a killed command resumes, with its
weights, vectors.npz (skip-gram) and summary.json; a task's scores on its vectors.

Read rows.py (the store's text as rows), training.py (the folder and its loop), then skipgram.py and
bilm.py. vectors.py opens what was trained, frozen_task.py learns a task on it.
"""
