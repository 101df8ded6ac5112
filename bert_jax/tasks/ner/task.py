"""Open named-entity files as a task: a tag for every word, scored as conlleval does.

A row is a sentence; one longer than max_seq_length becomes several rows, cut between words. The
first token of each word carries its tag, and the tag predicted there is the word's. Source: Devlin
et al. 2019, section 5.3; unlike the paper's, a row has no neighboring sentences.
"""

import collections
import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks.files import DEV, TEST, TRAIN, read_splits
from bert_jax.tasks.labels import check_labels
from bert_jax.tasks.ner import data
from bert_jax.tasks.ner.conlleval import OUTSIDE, EntityScore, score_entities
from bert_jax.tasks.ner.data import Sentence, TaggedFile
from bert_jax.tasks.task import TAG, Example, Scores, Task
from data_pipeline.io import Refused
from data_pipeline.io.small_files import list_names
from data_pipeline.labeled.framing import FramedRow, frame
from data_pipeline.labeled.rows import EncodedRows, build_rows
from data_pipeline.vocab import Vocabulary, split_ids

# CoNLL-2003 and WNUT-17 as published, and the usual names of users' own files.
FILE_NAMES = {
    TRAIN: ("eng.train", "wnut17train.conll", "train.txt", "train.conll"),
    DEV: ("eng.testa", "emerging.dev.conll", "dev.txt", "valid.txt", "dev.conll"),
    TEST: ("eng.testb", "emerging.test.annotated", "test.txt", "test.conll"),
}
Tags = Sequence[Sequence[str]]  # a sequence per sentence


@dataclasses.dataclass(frozen=True)
class WordRows:
    """Hold W words as rows of tokens, and the position of each word's first token."""

    sentences: Sequence[Sentence]
    rows: EncodedRows
    row_W: np.ndarray  # int64
    position_W: np.ndarray  # int64, within the row
    unknown_words: int  # words without a token; each is [UNK] in its row

    def choose_tags(self, logits_NSC: np.ndarray, classes: Sequence[str]) -> Tags:
        """Return the likeliest tag of each word, by sentence."""
        class_W = logits_NSC[self.row_W, self.position_W].argmax(axis=-1)
        ends = np.cumsum([len(sentence.words) for sentence in self.sentences])[:-1]
        return [[classes[i] for i in class_ids] for class_ids in np.split(class_W, ends)]

    @property
    def gold(self) -> Tags:
        """Return the tags of the file."""
        return [sentence.tags for sentence in self.sentences]


def open_task(options: TaskOptions, vocabulary: Vocabulary) -> Task:
    """Read the files of config.data.dir."""
    if options.max_seq_length < 3:
        raise Refused(
            f"config.data.max_seq_length is {options.max_seq_length}; a row needs 3 tokens at "
            "least, for [CLS], a token and [SEP]"
        )
    files = read_splits(options, FILE_NAMES, lambda path, split: data.read(path))
    classes = _list_classes(files)
    splits = {
        split: encode_words(file.sentences, classes, vocabulary, options.max_seq_length)
        for split, file in files.items()
    }
    train = files[TRAIN]
    first, gold = train.sentences[0], splits[DEV].gold
    by_word = score_entities(gold, tag_by_frequency(train, files[DEV]))
    empty = score_entities(gold, [[OUTSIDE] * len(tags) for tags in gold])

    def score(split: str, logits_NSC: np.ndarray) -> Scores:
        words = splits[split]
        return _collect_scores(score_entities(words.gold, words.choose_tags(logits_NSC, classes)))

    return Task(
        name="NER",
        kind=TAG,
        classes=len(classes),
        splits={split: words.rows for split, words in splits.items()},
        dev_splits=(DEV,),
        score=score,
        main_score="f1",
        baseline=_collect_scores(empty),
        format_predictions=functools.partial(_format_predictions, splits, classes),
        labels=classes,
        notes=(
            *(_note(split, files[split], words) for split, words in splits.items()),
            f"tags: {', '.join(classes)}",
            "tagging each word of dev with its most frequent tag in train (O if unseen) scores F1 "
            f"{by_word.overall.compute_rates()['f1']:.1%}; no entity at all scores 0",
        ),
        warnings=check_labels(train.list_types(), "the last column"),
        example=Example((" ".join(first.words),), " ".join(first.tags)),
    )


def _list_classes(files: Mapping[str, TaggedFile]) -> tuple[str, ...]:
    """Return O, and B- and I- of every type in training; refuse other types in other files."""
    for split in (TRAIN, DEV):
        if not files[split].has_tags:
            raise Refused(
                f"{files[split].path} has one column, words without tags; as the {split} file of "
                "ner it must have tags in its last column"
            )
    train = files[TRAIN]
    names = {kind for kind, _ in train.list_types()}
    kinds = dict.fromkeys(sorted(names))  # each entity of the files is looked up in it
    if not kinds:
        raise Refused(
            f"{train.path} has no entity: all its {train.words:,} words have the tag O, so "
            "there is nothing to learn"
        )
    for file in files.values():
        for kind, place in file.list_types():
            if kind not in kinds:
                raise Refused(
                    f"{place} has an entity of type {kind!r:.60}, which {train.path} never has; "
                    f"its types are {list_names(list(kinds))}: correct the row, or add such an "
                    "entity to the training file"
                )
    return (OUTSIDE, *(f"{letter}-{kind}" for kind in kinds for letter in "BI"))


def encode_words(
    sentences: Sequence[Sentence],
    classes: Sequence[str],
    vocabulary: Vocabulary,
    max_seq_length: int,
) -> WordRows:
    """Encode sentences as rows; the label and weight of each word are at its first token."""
    words = sorted({word for sentence in sentences for word in sentence.words})
    ids_of_words = dict(zip(words, split_ids(*vocabulary.encode_words(words)), strict=True))
    unknown = [vocabulary.special_ids["unk"]]
    before, after = vocabulary.template.margins(is_pair=False)
    most = max_seq_length - before - after
    # A word longer than a row is cut: its first token is the one that counts.
    tokens = {word: ids[:most].tolist() or unknown for word, ids in ids_of_words.items()}
    rows: list[FramedRow] = []
    row_of_words: list[int] = []
    position_of_words: list[int] = []
    for sentence in sentences:
        words_of_tokens = [tokens[word] for word in sentence.words]
        for window in _split_windows(words_of_tokens, most):
            row_of_words += [len(rows)] * len(window)
            position_of_words += np.cumsum([before, *map(len, window)])[:-1].tolist()
            ids = [token for word in window for token in word]
            rows.append(frame(ids, None, vocabulary.template, max_seq_length))
    framed = build_rows(rows)
    row_W, position_W = np.array(row_of_words), np.array(position_of_words)
    if tags := [tag for sentence in sentences for tag in sentence.tags]:
        number_of = {name: number for number, name in enumerate(classes)}
        place_W = framed.offsets[row_W] + position_W
        label_ids_T = np.zeros(len(framed.token_ids), np.int32)
        label_ids_T[place_W] = [number_of[tag] for tag in tags]
        label_weights_T = np.zeros(len(framed.token_ids), np.float32)
        label_weights_T[place_W] = 1.0
        token_labels = {"label_ids": label_ids_T, "label_weights": label_weights_T}
        framed = dataclasses.replace(framed, token_labels=token_labels)
    no_token = {word for word, ids in ids_of_words.items() if not len(ids)}
    unknown_words = sum(word in no_token for sentence in sentences for word in sentence.words)
    return WordRows(sentences, framed, row_W, position_W, unknown_words)


def _split_windows(words_of_tokens: Sequence[list[int]], most: int) -> list[list[list[int]]]:
    """Split a sentence's words greedily into runs of at most `most` tokens."""
    windows: list[list[list[int]]] = []
    room = 0
    for tokens in words_of_tokens:
        if len(tokens) > room:
            windows.append([])
            room = most
        windows[-1].append(tokens)
        room -= len(tokens)
    return windows


def tag_by_frequency(train: TaggedFile, file: TaggedFile) -> Tags:
    """Tag each word of a file with its most frequent tag in training; O for an unseen word."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for sentence in train.sentences:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            counts[word][tag] += 1
    best = {word: max(sorted(tags), key=tags.__getitem__) for word, tags in counts.items()}
    return [[best.get(word, OUTSIDE) for word in sentence.words] for sentence in file.sentences]


def _collect_scores(score: EntityScore) -> Scores:
    return {
        **score.overall.compute_rates(),
        "token_accuracy": score.token_accuracy,
        # Only types of the gold entities: other predicted types change from run to run.
        **{
            f"f1_{kind}": counts.compute_rates()["f1"]
            for kind, counts in score.by_type.items()
            if counts.gold
        },
    }


def _format_predictions(
    splits: Mapping[str, WordRows], classes: Sequence[str], split: str, logits_NSC: np.ndarray
) -> dict[str, str]:
    """Format a line for each word, as conlleval reads it: word, gold tag if any, predicted tag.

    Spaces separate the columns, so a space within a word or a type becomes an underscore.
    """
    words = splits[split]
    lines = []
    tags = words.choose_tags(logits_NSC, classes)
    for sentence, predicted in zip(words.sentences, tags, strict=True):
        tags_of_file = [sentence.tags] if sentence.tags else []
        for row in zip(sentence.words, *tags_of_file, predicted, strict=True):
            lines.append(" ".join(cell.replace(" ", "_") for cell in row))
        lines.append("")
    return {f"{split}.conll": "\n".join(lines) + "\n"}


def _note(split: str, file: TaggedFile, words: WordRows) -> str:
    note = f"{split} ({file.path.name}): {file.note}"
    cut = words.rows.examples - len(file.sentences)
    if cut:
        note += f"; {cut:,} more rows than sentences, because some are longer than a row"
    if words.unknown_words:
        note += f"; {words.unknown_words:,} words have no token and are [UNK]"
    return note
