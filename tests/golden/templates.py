"""Rows and outputs of Hugging Face's tokenizers and classifiers, written as templates.npz.

    python -m tests.golden.templates

in an environment with torch, transformers and sentencepiece. Of each family: the files of a
tokenizer of letters, the ids and segments of texts and of pairs, the last hidden vectors, and the
logits of a classifier. Weights follow from their names, as in encoders.py.
"""

import io
import json
import pathlib
import tempfile
from typing import Any

import numpy as np

from tests.golden import encoders

LETTERS = "abcdefghijklmnopqrst"
# The tokens per row: an odd number is left to the texts of a pair in one of the two.
MAX_ROW_TOKENS = (12, 11)
# Single texts, then pairs: of equal and of different lengths. WordPiece gets a space behind each.
TEXTS: tuple[tuple[str, ...], ...] = (
    ("abc",),
    ("tsrqponmlkjih",),
    ("abc", "d"),
    ("abcdefgh", "ijklmnop"),
    ("abcdefg", "ijklmnop"),
    ("abcdefgh", "ijklmno"),
    ("abcdefghijklmn", "op"),
    ("a", "bcdefghijklmn"),
)
ROWS = tuple((longest, texts) for longest in MAX_ROW_TOKENS for texts in TEXTS)
SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 10, "max_position_embeddings": 24, "num_labels": 3}
OF_ROBERTA = {"type_vocab_size": 1, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
OF_MODERNBERT = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "local_attention": 6}
OF_XLNET = {"d_model": 12, "n_layer": 2, "n_head": 3, "d_inner": 10, "num_labels": 3}
# Class of transformers without its end -> its config.
MODELS: dict[str, dict[str, Any]] = {
    "Bert": SIZES | encoders.NO_DROPOUT,
    "Albert": SIZES | encoders.NO_DROPOUT | {"embedding_size": 7},
    "Electra": SIZES | encoders.NO_DROPOUT | {"embedding_size": 7},
    "Roberta": SIZES | encoders.NO_DROPOUT | OF_ROBERTA,
    "ModernBert": SIZES | OF_MODERNBERT,
    "XLNet": OF_XLNET | {"dropout": 0.0},
}


def spaced(kind: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return texts of which every letter is a token."""
    return tuple(" ".join(text) if kind in ("Bert", "Electra") else text for text in texts)


def make_tokenizer(kind: str, folder: pathlib.Path) -> Any:
    """Make the tokenizer of a family, save what a reader needs, and return the library's."""
    import tokenizers
    import transformers

    if kind in ("Albert", "XLNet"):
        path = folder / "spiece.model"
        path.write_bytes(train_pieces(kind))
        return getattr(transformers, f"{kind}Tokenizer").from_pretrained(folder).backend_tokenizer
    if kind in ("Bert", "Electra"):
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
        (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
        made = getattr(transformers, f"{kind}Tokenizer")({p: i for i, p in enumerate(pieces)})
        return made.backend_tokenizer
    names = {"Roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]}
    special = names.get(kind, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    characters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {p: i for i, p in enumerate([*special, *characters])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.add_special_tokens(special)
    processors = tokenizers.processors
    if kind == "Roberta":
        made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    else:
        of_pair = "[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0"
        ends = [("[CLS]", 2), ("[SEP]", 3)]
        made.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0", pair=of_pair, special_tokens=ends
        )
    made.save(str(folder / "tokenizer.json"))
    return made


def train_pieces(kind: str) -> bytes:
    """Train a SentencePiece model of words of one letter, with a family's special pieces."""
    import sentencepiece

    control = {"Albert": ["[CLS]", "[SEP]", "[MASK]"]}.get(kind, ["<cls>", "<sep>", "<mask>"])
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(LETTERS)] * 40),
        model_writer=model,
        vocab_size=60,
        control_symbols=control,
        pad_id=3,
        normalization_rule_name="identity",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


def compute(kind: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Compute the rows of a family and their outputs, each row by itself, without padding."""
    import torch
    import transformers

    shape = len(ROWS), max(MAX_ROW_TOKENS)
    arrays: dict[str, Any] = {
        f"{kind}/ids": np.full(shape, -1),
        f"{kind}/segments": np.full(shape, -1),
        f"{kind}/hidden": np.zeros((*shape, 12), np.float32),
        f"{kind}/logits": np.zeros((len(ROWS), 3), np.float32),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tokenizer = make_tokenizer(kind, folder)
        for path in folder.iterdir():
            arrays[f"{kind}/files/{path.name}"] = np.frombuffer(path.read_bytes(), np.uint8)
    model_class = getattr(transformers, f"{kind}ForSequenceClassification")
    vocab_size = tokenizer.get_vocab_size()
    config = model_class.config_class(
        **sizes,
        vocab_size=vocab_size,
        attn_implementation="eager",
        architectures=[model_class.__name__],
    )
    model = model_class(config).eval()
    arrays[f"{kind}/config"] = json.dumps(config.to_dict())
    shapes = {path: list(parameter.shape) for path, parameter in model.named_parameters()}
    arrays[f"{kind}/shapes"] = json.dumps(shapes)
    has_segments = getattr(config, "type_vocab_size", 0) > 1 or kind == "XLNet"
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.copy_(torch.tensor(encoders.weights(path, tuple(parameter.shape))))
        for number, (longest, texts) in enumerate(ROWS):
            tokenizer.enable_truncation(longest, strategy="longest_first")
            row = tokenizer.encode(*spaced(kind, texts))
            inputs = {"input_ids": torch.tensor([row.ids])}
            if has_segments:
                inputs["token_type_ids"] = torch.tensor([row.type_ids])
            out = model(**inputs, output_hidden_states=True)
            tokens = slice(0, len(row.ids))
            arrays[f"{kind}/ids"][number, tokens] = row.ids
            arrays[f"{kind}/segments"][number, tokens] = row.type_ids
            arrays[f"{kind}/hidden"][number, tokens] = out.hidden_states[-1][0].numpy()
            arrays[f"{kind}/logits"][number] = out.logits[0].numpy()
    return arrays


def main() -> None:
    """Entry point."""
    import torch

    torch.set_num_threads(1)
    arrays: dict[str, Any] = {}
    for kind, sizes in MODELS.items():
        arrays |= compute(kind, sizes)
    np.savez_compressed(pathlib.Path(__file__).with_suffix(".npz"), **arrays)


if __name__ == "__main__":
    main()
