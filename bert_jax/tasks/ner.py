"""Named entities: a tag for every word from CoNLL's or IOB2 files, scored as conlleval does.

A row is a sentence of a file; one longer than max_seq_length becomes several, cut between words.
The first piece of each word carries its tag, and the tag predicted there is the word's. Source:
Devlin et al. 2019, section 5.3; a row has no neighbouring sentences, which the paper's had.
"""

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.finetune_config import TaskOptions
from bert_jax.record_files import write_whole
from bert_jax.tasks import ner_files, split_files
from bert_jax.tasks.entity_score import OUTSIDE, EntityScore, entity_score, parts
from bert_jax.tasks.ner_files import TaggedFile
from bert_jax.tasks.task import TAG, Scores, Task
from data_pipeline.finetune import EncodedRows, encoded
from data_pipeline.framing import Row, frame
from data_pipeline.vocab import Vocabulary

# CoNLL-2003 and WNUT-17 as published, and what files of one's own are mostly called.
FILE_NAMES = {
    split_files.TRAIN: ("eng.train", "wnut17train.conll", "train.txt", "train.conll"),
    split_files.DEV: ("eng.testa", "emerging.dev.conll", "dev.txt", "valid.txt", "dev.conll"),
    split_files.TEST: ("eng.testb", "emerging.test.annotated", "test.txt", "test.conll"),
}
Tags = Sequence[Sequence[str]]  # of sentences


@dataclasses.dataclass(frozen=True)
class WordRows:
    """A file's W words as rows of pieces, and where each word's first piece stands."""

    file: TaggedFile
    rows: EncodedRows
    row_W: np.ndarray  # int64
    position_W: np.ndarray  # int64, within the row: 0 = [CLS]
    unknown_words: int  # words that make no piece; each stands in its row as [UNK]

    def tags_from(self, logits_NSC: np.ndarray, classes: Sequence[str]) -> Tags:
        """The likeliest tag of each word, by sentence."""
        class_W = logits_NSC[self.row_W, self.position_W].argmax(axis=-1)
        ends = np.cumsum([len(one.words) for one in self.file.sentences])[:-1]
        return [[classes[i] for i in of_one] for of_one in np.split(class_W, ends)]

    @property
    def gold(self) -> Tags:
        """The tags of the file."""
        return [one.tags for one in self.file.sentences]


def open_task(options: TaskOptions, vocabulary: Vocabulary) -> Task:
    """Read the files of config.data.dir.

    Raises:
      ValueError: a file is missing or wrong, training has no entity, or another file has a type
        of entity that training has not; file and row are named.
    """
    split_files.refuse_other_sources(options)
    if options.max_seq_length < 3:
        raise ValueError(
            f"config.data.max_seq_length is {options.max_seq_length}; a row needs 3 tokens at "
            "least, for [CLS], a piece and [SEP]"
        )
    files = split_files.read_splits(options, FILE_NAMES, ner_files.read)
    classes = _classes(files)
    splits = {
        split: word_rows(file, classes, vocabulary, options.max_seq_length)
        for split, file in files.items()
    }
    train, dev = splits[split_files.TRAIN], splits[split_files.DEV]
    by_word = entity_score(dev.gold, commonest_tags(train.file, dev.file))
    empty = entity_score(dev.gold, [[OUTSIDE] * len(tags) for tags in dev.gold])
    return Task(
        name="NER",
        kind=TAG,
        classes=len(classes),
        splits={split: of_split.rows for split, of_split in splits.items()},
        dev_splits=(split_files.DEV,),
        score=functools.partial(_score, splits, classes),
        main_score="f1",
        baseline=_scores(empty),
        write_predictions=functools.partial(_write_predictions, splits, classes),
        labels=classes,
        notes=(
            *(_note(split, of_split) for split, of_split in splits.items()),
            f"tags: {', '.join(classes)}",
            "giving each word of dev the commonest tag that it has in train, O to others, scores "
            f"F1 {by_word.overall.f1:.1%}; no entity at all, 0",
        ),
    )


def _classes(files: Mapping[str, TaggedFile]) -> tuple[str, ...]:
    """O, and B- and I- of every type that training has; other files must have no more."""
    for split in (split_files.TRAIN, split_files.DEV):
        if not files[split].has_tags:
            raise ValueError(
                f"{files[split].path} has one column, words without tags; as the {split} file of "
                "ner it must have the tags in the last one"
            )
    train = files[split_files.TRAIN]
    kinds = sorted({parts(tag)[1] for _, tag in train.tags_by_line() if tag != OUTSIDE})
    if not kinds:
        raise ValueError(
            f"{train.path} has no entity, O is the tag of all its {train.words:,} words; there is "
            "nothing to learn from it"
        )
    for file in files.values():
        for line, tag in file.tags_by_line():
            if tag != OUTSIDE and parts(tag)[1] not in kinds:
                raise ValueError(
                    f"{file.path} row {line} has an entity of type {parts(tag)[1]!r:.60}, which "
                    f"{train.path} never has; its types are {', '.join(kinds)}"
                )
    return (OUTSIDE, *(f"{letter}-{kind}" for kind in kinds for letter in "BI"))


def word_rows(
    file: TaggedFile, classes: Sequence[str], vocabulary: Vocabulary, max_seq_length: int
) -> WordRows:
    """The rows of a file: label_ids and label_weights at the first piece of each word."""
    words = sorted({word for one in file.sentences for word in one.words})
    flat, lengths = vocabulary.encode(words)
    of_word = np.split(np.asarray(flat, np.int32), np.cumsum(lengths)[:-1])
    no_piece = {word for word, length in zip(words, lengths, strict=True) if length == 0}
    unknown = [vocabulary.special_ids["unk"]]
    pieces = {
        # Of a word longer than a row what counts is its first piece.
        word: unknown if word in no_piece else ids[: max_seq_length - 2].tolist()
        for word, ids in zip(words, of_word, strict=True)
    }
    rows: list[Row] = []
    row_of: list[int] = []
    position_of: list[int] = []
    for one in file.sentences:
        for window in _windows([pieces[word] for word in one.words], max_seq_length - 2):
            starts = np.cumsum([1, *map(len, window)])[:-1]
            row_of += [len(rows)] * len(window)
            position_of += starts.tolist()
            ids = [piece for of_one in window for piece in of_one]
            rows.append(frame(ids, None, vocabulary.special_ids, max_seq_length))
    framed = encoded(rows)
    row_W, position_W = np.array(row_of), np.array(position_of)
    if file.has_tags:
        number_of = {name: number for number, name in enumerate(classes)}
        labels_W = [number_of[tag] for _, tag in file.tags_by_line()]
        framed = _labelled(framed, framed.offsets[row_W] + position_W, labels_W)
    unknown_words = sum(word in no_piece for one in file.sentences for word in one.words)
    return WordRows(file, framed, row_W, position_W, unknown_words)


def _windows(pieces_of_words: Sequence[list[int]], most: int) -> list[list[list[int]]]:
    """A sentence's words in runs of at most so many pieces, each as long as can be."""
    windows: list[list[list[int]]] = []
    room = 0
    for pieces in pieces_of_words:
        if len(pieces) > room:
            windows.append([])
            room = most
        windows[-1].append(pieces)
        room -= len(pieces)
    return windows


def _labelled(rows: EncodedRows, place_W: np.ndarray, labels_W: Sequence[int]) -> EncodedRows:
    label_ids_T = np.zeros(len(rows.token_ids), np.int32)
    label_weights_T = np.zeros(len(rows.token_ids), np.float32)
    label_ids_T[place_W] = labels_W
    label_weights_T[place_W] = 1.0
    token_labels = {"label_ids": label_ids_T, "label_weights": label_weights_T}
    return dataclasses.replace(rows, token_labels=token_labels)


def commonest_tags(train: TaggedFile, file: TaggedFile) -> Tags:
    """For each word of a file the tag that it has most often in training; O if it is not there."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for one in train.sentences:
        for word, tag in zip(one.words, one.tags, strict=True):
            counts[word][tag] += 1
    commonest = {word: max(sorted(tags), key=tags.__getitem__) for word, tags in counts.items()}
    return [[commonest.get(word, OUTSIDE) for word in one.words] for one in file.sentences]


def _score(
    splits: Mapping[str, WordRows], classes: Sequence[str], split: str, logits_NSC: np.ndarray
) -> Scores:
    of_split = splits[split]
    return _scores(entity_score(of_split.gold, of_split.tags_from(logits_NSC, classes)))


def _scores(score: EntityScore) -> Scores:
    return {
        "f1": score.overall.f1,
        "precision": score.overall.precision,
        "recall": score.overall.recall,
        "token_accuracy": score.token_accuracy,
        # Of types in the text alone: which others are predicted changes from run to run.
        **{f"f1_{kind}": counts.f1 for kind, counts in score.by_type.items() if counts.gold},
    }


def _write_predictions(
    splits: Mapping[str, WordRows],
    classes: Sequence[str],
    split: str,
    logits_NSC: np.ndarray,
    folder: pathlib.Path,
) -> list[pathlib.Path]:
    """A line a word: the word, its gold tag if it has one, the predicted tag; conlleval reads it.

    Spaces part the columns, so that one within a word becomes an underscore.
    """
    of_split = splits[split]
    path = folder / f"{split}.conll"
    lines = []
    for one, predicted in zip(
        of_split.file.sentences, of_split.tags_from(logits_NSC, classes), strict=True
    ):
        words = [word.replace(" ", "_") for word in one.words]
        columns = (words, one.tags, predicted) if of_split.file.has_tags else (words, predicted)
        lines += [" ".join(row) for row in zip(*columns, strict=True)] + [""]
    write_whole(path, ("\n".join(lines) + "\n").encode())
    return [path]


def _note(split: str, of_split: WordRows) -> str:
    note = f"{split} ({of_split.file.path.name}): {of_split.file.note}"
    cut = of_split.rows.examples - len(of_split.file.sentences)
    if cut:
        note += f"; {cut:,} rows more than sentences, for those that are longer than a row"
    if of_split.unknown_words:
        note += f"; {of_split.unknown_words:,} words make no piece and stand there as [UNK]"
    return note
