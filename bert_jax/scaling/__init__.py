"""Train the same model in several sizes and predict the loss of a larger run.

In: a LadderConfig and a workdir. Out: a folder per run, and a law of the held-out masked LM loss
with its interval. Read `ladder`, then `ladder_report`; the law lies in planning/.
"""
