"""Turn text into batches for pre-training: documents, vocabularies, stores, pairs, masks."""

from data_pipeline.cli.main import start_command

start_command("data_pipeline")
