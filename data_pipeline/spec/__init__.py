"""Define what the pipeline and the trainer agree on: settings, batch fields, random numbers.

Read fields.py (how a setting is declared) and options.py first, then schema.py and hashing.py.
"""
