"""Train, load and grow vocabularies, which turn text into token ids and back.

In: a vocabulary file, or text to train one on. Out: a Vocabulary; tokenizer.json for others.
Read vocabulary.py first, then special_tokens.py, template.py, tokenizer_file.py, documents.py,
wordpiece.py, byte_level.py, sentencepiece_model.py, sentencepiece_rules.py, train.py, grow.py,
offsets.py and tokenizer_json.py.
"""

from data_pipeline.vocab.documents import split_ids
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
    load_recorded,
    load_vocabulary,
    name_copy,
    read_file,
    token_dtype,
)
