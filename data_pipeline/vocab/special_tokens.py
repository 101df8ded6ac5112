"""Find the special tokens that BERT needs among the pieces of a vocabulary."""

import pathlib
import re
from collections.abc import Collection, Mapping, Sequence

from data_pipeline.io.refused import Refused

# The spellings of each, by the names that a store uses: BERT's, ALBERT's and XLNet's, RoBERTa's.
SPECIAL_PIECES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
# Words in the spelling of a token that a file marks as special: <|mask|>, <MASK|LLM-jp>, <bos>.
_WORDS = {"cls": {"cls", "bos"}, "sep": {"sep", "eos"}}
_LETTERS = re.compile("[a-z]+")
# Slots that BERT's lists keep for a later use. Source: google-research/bert#9.
UNUSED = re.compile(r"\[unused\d+\]")


def find_special_ids(
    path: pathlib.Path,
    pieces: Sequence[str],
    known: Mapping[str, int],
    marked: Collection[str] = (),
) -> dict[str, int]:
    """Return the ids of the special tokens: the known ones, the rest by spelling.

    Of several spellings the one that a file marks as special is right: MPNet's has BERT's too.
    Without any, it is the only marked token whose spelling has the name as a word.

    Raises:
      Refused: one is missing, or has two roles.
    """
    id_of = {piece: i for i, piece in enumerate(pieces)}
    special_ids = {}
    for name, spellings in SPECIAL_PIECES.items():
        marked_first = sorted(spellings, key=lambda spelling: spelling not in marked)
        candidates = [spelling for spelling in marked_first if spelling in id_of]
        if not candidates:
            words = _WORDS.get(name, {name})
            named = [token for token in marked if words & {*_LETTERS.findall(token.lower())}]
            candidates = named if len(named) == 1 else []
        ids = [id_of[token] for token in candidates]
        if name not in known and not ids:
            raise Refused(
                f"{path} has no piece {' or '.join(spellings)} among its {len(pieces)}; BERT needs "
                "[PAD], [UNK], [CLS], [SEP] and [MASK]: take the vocabulary of a BERT, RoBERTa or "
                "ModernBERT, or train one with --train_vocab"
            )
        special_ids[name] = known[name] if name in known else ids[0]
    if len(set(special_ids.values())) != len(special_ids):
        raise Refused(f"{path} has one token for two roles of {special_ids}; each needs its own")
    return special_ids
