"""Predict a tag for every word of a file with a word a line, as named entities have them.

The output has the columns of the input, then the tag and its probability, parted by tabs; an empty
line ends a sentence.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence

from bert_jax.tasks import ner, ner_files
from bert_jax.tasks.ner_files import Sentence, TaggedFile
from bert_jax.tasks.predicting import Asked, LogitsOf, check_ending, counted, probabilities
from data_pipeline.whole_file import whole_file

ENDINGS = (".conll", ".txt", ".tsv")
_PIECE_SENTENCES = 1024
_PIECE_WORDS = 1 << 14  # a longer sentence is cut: it would be many rows anyway


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Sentences that follow each other, and all columns of their words."""

    sentences: list[list[list[str]]]

    @property
    def words(self) -> int:
        return sum(map(len, self.sentences))


class PredictWords:
    """A file of words to tag."""

    unit = "sentences"

    def __init__(self, asked: Asked, output: pathlib.Path, show: Callable[[int], None]) -> None:
        """Go through the whole input.

        Raises:
          ValueError: lines of unequal columns, text that is not UTF-8, no words.
        """
        check_ending(output, ENDINGS, "a file of words")
        if asked.max_seq_length < 3:
            raise ValueError(
                f"--max_seq_length is {asked.max_seq_length}; a row needs 3 tokens at least"
            )
        self._asked = asked
        self.total = self._words = self._unknown = self._cut = 0
        for piece in _pieces(asked.path):
            self.total += len(piece.sentences)
            self._words += piece.words
            show(self.total)
        if not self.total:
            raise ValueError(f"{asked.path} has no words; it must have one a line")

    def run(self, output: pathlib.Path, logits_of: LogitsOf) -> list[pathlib.Path]:
        """Predict and write, as Predicting says."""
        words = 0
        with (
            whole_file(output) as unfinished,
            unfinished.open("w", encoding="utf-8", newline="") as file,
        ):
            for piece in _pieces(self._asked.path):
                words += piece.words
                if words > self._words:
                    break
                for line in self._lines(piece, logits_of):
                    file.write(line + "\n")
            if words != self._words:
                raise ValueError(f"{self._asked.path} was changed while it was read; start again")
        return [output]

    def _lines(self, piece: _Piece, logits_of: LogitsOf) -> Iterator[str]:
        words = tuple(Sentence(0, tuple(row[0] for row in one), ()) for one in piece.sentences)
        file = TaggedFile(self._asked.path, words, False, "")
        labels, most = self._asked.layer.labels, self._asked.max_seq_length
        made = ner.word_rows(file, labels, self._asked.vocabulary, most)
        self._unknown += made.unknown_words
        self._cut += made.rows.examples - len(words)
        logits_NSC = logits_of(made.rows, len(words))
        logits_WC = logits_NSC[made.row_W, made.position_W]
        best_W, share_W = logits_WC.argmax(axis=1), probabilities(logits_WC).max(axis=1)
        word = 0
        for sentence in piece.sentences:
            for row in sentence:
                yield "\t".join([*row, labels[best_W[word]], f"{share_W[word]:.6f}"])
                word += 1
            yield ""

    def account(self) -> list[tuple[str, str]]:
        """Return what was found in the words."""
        findings = {"longer_than_a_row_and_cut": self._cut}
        return [
            ("sentences", counted(self.total, self.unit, **findings)),
            ("words", counted(self._words, "words", without_a_piece=self._unknown)),
            ("columns", "the file's, then the tag and its probability, parted by tabs"),
        ]


def _pieces(path: pathlib.Path) -> Iterator[_Piece]:
    done: list[list[list[str]]] = []
    sentence: list[list[str]] = []
    words = 0
    for _, row in _ended(path):
        if row:
            sentence.append(list(row))
            words += 1
        if sentence and (not row or words >= _PIECE_WORDS):
            done.append(sentence)
            sentence = []
        if len(done) == _PIECE_SENTENCES or words >= _PIECE_WORDS:
            yield _Piece(done)
            done, words = [], 0
    if done:
        yield _Piece(done)


def _ended(path: pathlib.Path) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the rows of a file and an empty one behind the last."""
    yield from ner_files.rows_of(path)
    yield 0, []
