"""Load a checkpoint of any format as one model, and write the formats of other libraries.

In: hf:DIR or NAME, google:PREFIX, or orbax:WORKDIR. Out: a Pretrained (sizes, vocabulary and NumPy
arrays under bert_jax's names), or a verified export.

Read load and pretrained first; then tensor_names, families/ (the encoders of transformers) and the
formats (huggingface, transformers_class, tf1, with model_json, vocabulary, hub), warm_start (a run
that begins with a checkpoint) and teacher, and export with model_card.
"""
