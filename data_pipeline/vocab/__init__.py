"""Train, load and grow vocabularies, which turn text into token ids and back.

In: a vocabulary file, or text to train one on. Out: a Vocabulary; tokenizer.json for others.
Read vocabulary.py and load.py first, then template.py, tokenizer_file.py, wordpiece.py,
byte_level.py, sentencepiece_model.py, train.py, offsets.py and tokenizer_json.py.
"""

from data_pipeline.vocab.load import load_recorded, load_vocabulary, name_copy, read_file
from data_pipeline.vocab.vocabulary import (
    BYTE_LEVEL,
    FILE_NAMES,
    LIST,
    MODEL,
    SENTENCEPIECE,
    TOKENIZER_JSON,
    WORD_START,
    WORDPIECE,
    Vocabulary,
    describe_case,
    split_ids,
    token_dtype,
)
