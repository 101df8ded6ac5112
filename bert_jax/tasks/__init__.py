"""Turn the files of a task into rows of tokens, and a model's logits into answers and scores.

In: the files of GLUE, SQuAD, SWAG, CODAH, named entities or a user's own table, and a vocabulary.
Out: a `Task` (task.py): encoded rows for training, a score function, predictions in the task's own
format. NumPy only; the losses are in finetuning/objectives.py.

Read task.py and registry.py, then encode.py (texts -> rows), files.py (columns of tsv, csv, JSON
lines, Parquet), labels.py, metrics.py and the task at hand: glue/, squad/, ner/, table.py,
multiple_choice.py.
To predict new rows: predicting.py, predict_table.py (ner/predict.py, squad/predict.py),
table_pieces.py; task_layer.py is what an export keeps of a task.
"""
