"""Make small SQuAD files, a vocabulary of their words, and logits that point at a span."""

import json
import pathlib

import numpy as np

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks.squad.data import Answer, Paragraph, SquadQuestion
from data_pipeline.vocab import Vocabulary, load_vocabulary

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def letter_vocabulary(folder: pathlib.Path, words: str = "") -> Vocabulary:
    """Load a vocabulary of these words and of letters, which spell all other words."""
    pieces = [*SPECIALS, *LETTERS, *(f"##{one}" for one in LETTERS), *"().,'-?中国", *words.split()]
    path = folder / "vocab.txt"
    path.write_text("\n".join(dict.fromkeys(pieces)) + "\n", encoding="utf-8")
    return load_vocabulary(path)


def question(question_id: str, text: str, *answers: tuple[str, int]) -> SquadQuestion:
    return SquadQuestion(question_id, text, tuple(Answer(*answer) for answer in answers))


def _qa(one: SquadQuestion) -> dict[str, object]:
    answers = [vars(answer) for answer in one.answers]
    return {"id": one.id, "question": one.text, "answers": answers}


def written(path: pathlib.Path, paragraphs: list[Paragraph], version: str = "1.1") -> pathlib.Path:
    """Write paragraphs in SQuAD's JSON."""
    shown = [
        {"context": text.context, "qas": [_qa(one) for one in text.questions]}
        for text in paragraphs
    ]
    document = {"version": version, "data": [{"title": "t", "paragraphs": shown}]}
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def options(folder: pathlib.Path, **changed: object) -> TaskOptions:
    settings = {"dir": str(folder), "max_seq_length": 40, "max_query_length": 11, "doc_stride": 7}
    return TaskOptions(task="squad", **{**settings, **changed})


def pointing(rows, at_R2: np.ndarray) -> np.ndarray:
    """Return start and end logits float32[R,S,2]: 10 at the positions at_R2, 0 elsewhere."""
    logits = np.zeros((rows.examples, int(rows.lengths_N.max()), 2), np.float32)
    for end in range(2):
        logits[np.arange(rows.examples), at_R2[:, end], end] = 10
    return logits
