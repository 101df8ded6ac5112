"""Predict a tag for every word of a file that has a word on each line.

The output has the columns of the input, then the tag and its probability, separated by tabs; an
empty line ends a sentence.
"""

import itertools
import pathlib
from collections.abc import Callable, Iterator

from bert_jax.tasks import predicting
from bert_jax.tasks.ner import data, task
from bert_jax.tasks.ner.data import Sentence
from bert_jax.tasks.predicting import ComputeLogits, PredictRequest
from data_pipeline.io import Refused
from data_pipeline.io.atomic import new_file

ENDINGS = (".conll", ".txt", ".tsv")
_PIECE_SENTENCES = 1024
_PIECE_WORDS = 1 << 14  # a longer sentence is cut: it would be many rows anyway

# All columns of the words of consecutive sentences; [] ends each, but not a part of a long one.
_Sentences = list[list[list[str]]]


class TagPredictor:
    """Tag the words of a file."""

    unit = "sentences"

    def __init__(self, request: PredictRequest, show: Callable[[int], None]) -> None:
        """Read the whole input once."""
        predicting.check_request(request, ENDINGS, "a file of words", 3)
        data.refuse_other_words(request.path)
        self._request = request
        self.total = self._words = self._unknown = self._cut = 0
        for piece in _pieces(request.path):
            self.total += _count_ends(piece)
            self._words += _count_words(piece)
            show(self.total)
        if not self.total:
            raise Refused(f"{request.path} has no words; it must have one on each line")

    def run(self, compute_logits: ComputeLogits) -> list[pathlib.Path]:
        """Tag and write the file; see Predictor.run."""
        path, output = self._request.path, self._request.output
        with (
            new_file(output) as unfinished,
            unfinished.open("w", encoding="utf-8", newline="") as file,
        ):
            for piece in predicting.reread(_pieces(path), _count_words, self._words, path):
                for line in self._lines(piece, compute_logits):
                    file.write(line + "\n")
        return [output]

    def _lines(self, piece: _Sentences, compute_logits: ComputeLogits) -> Iterator[str]:
        layer = self._request.layer
        sentences = [Sentence(0, tuple(row[0] for row in rows if row), ()) for rows in piece]
        labels, most = layer.labels, layer.options.max_seq_length
        encoded = task.encode_words(sentences, labels, self._request.vocabulary, most)
        self._unknown += encoded.unknown_words
        self._cut += encoded.rows.examples - _count_ends(piece)
        logits_NSC = compute_logits(encoded.rows, _count_ends(piece))
        logits_WC = logits_NSC[encoded.row_W, encoded.position_W]
        best_W, share_W = logits_WC.argmax(axis=1), predicting.probabilities(logits_WC).max(axis=1)
        word = 0
        for row in itertools.chain.from_iterable(piece):
            columns = [labels[best_W[word]], f"{share_W[word]:.6f}"] if row else []
            yield "\t".join([*row, *columns])
            word += bool(row)

    def summary_rows(self) -> list[tuple[str, str]]:
        """Report rows of sentences that were cut, and words without a token."""
        cut = {"more rows, because some are longer than a row": self._cut}
        unknown = {"without a token": self._unknown}
        return [
            ("sentences", predicting.describe_count(self.total, self.unit, cut)),
            ("words", predicting.describe_count(self._words, "words", unknown)),
            ("columns", "the file's, then the tag and its probability, separated by tabs"),
        ]


def _count_ends(piece: _Sentences) -> int:
    return sum(not rows[-1] for rows in piece)


def _count_words(piece: _Sentences) -> int:
    return sum(map(len, piece)) - _count_ends(piece)


def _pieces(path: pathlib.Path) -> Iterator[_Sentences]:
    most = _PIECE_SENTENCES, _PIECE_WORDS
    return predicting.group_by_size(_split_sentences(path), lambda rows: (1, len(rows)), most)


def _split_sentences(path: pathlib.Path) -> Iterator[list[list[str]]]:
    """Yield the rows of each sentence; cut a long sentence after every _PIECE_WORDS rows."""
    part: list[list[str]] = []
    for _, row in itertools.chain(data.read_columns(path), [(0, list[str]())]):
        if part and (not row or len(part) == _PIECE_WORDS):
            yield part if row else [*part, []]
            part = []
        if row:
            part.append(row)
