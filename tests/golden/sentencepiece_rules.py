"""Ids of ALBERT's and XLNet's tokenizers in Python, written as sentencepiece_rules.json.

    python -m tests.golden.sentencepiece_rules

in an environment with transformers 4.57 and sentencepiece. The model has pieces such as "9,".
"""

import base64
import io
import json
import pathlib
import tempfile

TEXTS = (
    "The Price is 9,999 or 1,0 in 2019, 2020, and 9,",
    "  two  spaces,\ta tab\nand\u00a0an end ",
    "Caf\u00e9 na\u00efve cafe\u0301 \u00c5ngstr\u00f6m \u0130stanbul \ufb01ne \u00bd",
    "``quoted'' text '' and `` 9,''",
    "x9, a19,b 2019,9",
    "\u4f60\u597d\uff0c\u4e16\u754c \u00b2, \u0663, \u039f\u0394\u039f\u03a3",
    "",
)
SETTINGS = (
    ("albert", "Albert", {}),
    ("xlnet", "XLNet", {}),
    ("albert+keep_accents", "Albert", {"keep_accents": True}),
    ("albert+keep_spaces", "Albert", {"remove_space": False}),
    ("xlnet+keep_accents+keep_spaces", "XLNet", {"keep_accents": True, "remove_space": False}),
)


def main() -> None:
    """Train a model, and write it with the ids of each class and its settings."""
    import sentencepiece
    import transformers

    lines = [
        "the price is 9, or 19, 2019, 2020, and 9,9",
        "The Cafe is fine 9, 2019, \u00e9 \u4f60",
    ]
    data = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines * 50),
        model_writer=data,
        vocab_size=70,
        model_type="bpe",
        normalization_rule_name="identity",
        split_by_number=False,
        split_by_unicode_script=False,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        pad_piece="[PAD]",
        unk_piece="[UNK]",
        bos_piece="[CLS]",
        eos_piece="[SEP]",
        control_symbols="[MASK]",
        minloglevel=2,
        hard_vocab_limit=False,
    )
    ids = {}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "spiece.model"
        path.write_bytes(data.getvalue())
        for rules, name, settings in SETTINGS:
            tokenizer = getattr(transformers, f"{name}Tokenizer")(str(path), **settings)
            ids[rules] = [
                tokenizer.convert_tokens_to_ids(tokenizer._tokenize(text)) for text in TEXTS
            ]
    content = {"model": base64.b64encode(data.getvalue()).decode(), "ids": ids}
    target = pathlib.Path(__file__).with_suffix(".json")
    target.write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
