"""Check whether a machine is fit for a run.

In come devices, a config and places; out comes a Verdict for each part: fine, wrong, or skipped
with its reason. Parts share nothing, so that one which fails leaves the others to answer. Read
checks, then kernel.
"""
