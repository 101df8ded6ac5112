"""Named entities: a label for each word's first piece, and predictions for every word."""

import numpy as np
import pytest
import sentencepiece

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.score import read_score
from bert_jax.tasks.ner import data
from bert_jax.tasks.ner import task as ner
from bert_jax.tasks.ner.conlleval import score_entities
from bert_jax.tasks.task import Example
from data_pipeline.vocab import load_vocabulary
from tests.bert_jax.tasks.tiny_vocabulary import vocabulary_of

TRAIN = "anna B-PER\nbert I-PER\nruns O\n\nrome B-LOC\nruns O\nanna O\n"
DEV = "anna B-PER\nruns O\nrome B-LOC\n"
NO_PIECE = "\u200d"  # a joiner: BERT's clean-up leaves nothing of it


@pytest.fixture
def vocabulary(tmp_path):
    #                      5    6     7     8    9
    return vocabulary_of("anna ##ka bert runs rome", tmp_path)


@pytest.fixture
def open_ner(tmp_path, vocabulary):
    def write_and_open(train=TRAIN, dev=DEV, test=None, words=None, **changes):
        folder = tmp_path / "files"
        folder.mkdir(exist_ok=True)
        for split, text in (("train", train), ("dev", dev), ("test", test)):
            if text is not None:
                (folder / f"{split}.txt").write_text(text)
        options = TaskOptions(task="ner", dir=str(folder), **{"max_seq_length": 8, **changes})
        return ner.open_task(options, words or vocabulary)

    return write_and_open


@pytest.fixture
def dev_words(tmp_path, vocabulary):
    """The rows of dev, in which a word's place is known."""

    def encode(task, max_seq_length=8):
        file = data.read(tmp_path / "files" / "dev.txt")
        return ner.encode_words(file.sentences, task.labels, vocabulary, max_seq_length)

    return encode


def logits_saying(task, split, tag_numbers_W, word_rows):
    """Logits in which the words' places, and no others, say these numbers."""
    rows = task.splits[split]
    logits = np.zeros((rows.examples, int(rows.lengths_N.max()), task.classes), np.float32)
    logits[..., 1] = 1.0  # what stands elsewhere must not matter
    logits[word_rows.row_W, word_rows.position_W, :] = 0.0
    logits[word_rows.row_W, word_rows.position_W, tag_numbers_W] = 2.0
    return logits


def test_the_first_piece_of_each_word_carries_its_label(open_ner):
    task = open_ner(train="annaka B-PER\nruns O\nromeka B-LOC\n")
    rows = task.splits["train"]
    np.testing.assert_array_equal(rows.token_ids, [2, 5, 6, 8, 9, 6, 3])
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    np.testing.assert_array_equal(rows.token_labels["label_ids"], [0, 3, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(rows.token_labels["label_weights"], [0, 1, 0, 1, 1, 0, 0])
    assert rows.token_labels["label_ids"].dtype == np.int32
    assert (task.kind, task.classes, task.head_width) == ("tag", 5, 5)


def test_a_word_without_a_piece_keeps_its_place_as_unk(open_ner):
    task = open_ner(dev=f"anna B-PER\n{NO_PIECE} O\nzzz O\n")
    np.testing.assert_array_equal(task.splits["dev"].token_ids, [2, 5, 1, 1, 3])
    assert task.splits["dev"].token_labels["label_weights"].sum() == 3
    assert any(
        note.startswith("dev") and "1 words have no token and are [UNK]" in note
        for note in task.notes
    )


def test_a_sentence_longer_than_a_row_loses_no_word(open_ner):
    dev = "".join(f"{word} O\n" for word in ["annaka", "runs", "annakaka", "rome", "bert"])
    long_word = "anna" + "ka" * 9  # ten pieces, more than a row has
    task = open_ner(dev=dev + f"{long_word} B-PER\n", max_seq_length=6)
    rows = task.splits["dev"]
    np.testing.assert_array_equal(rows.offsets, [0, 5, 11, 14, 20])
    np.testing.assert_array_equal(rows.token_ids[:5], [2, 5, 6, 8, 3])  # annaka runs
    np.testing.assert_array_equal(rows.token_ids[5:11], [2, 5, 6, 6, 9, 3])  # annakaka rome
    np.testing.assert_array_equal(rows.token_ids[14:], [2, 5, 6, 6, 6, 3])  # the long one, cut
    assert rows.token_labels["label_weights"].sum() == 6
    assert "3 more rows than sentences" in "\n".join(task.notes)


def test_scores_and_predictions_are_of_the_words_places_alone(open_ner, dev_words, tmp_path):
    task = open_ner(dev="annaka B-PER\nbert I-PER\nruns O\n\nrome B-LOC\n")
    dev = dev_words(task)
    right = task.score("dev", logits_saying(task, "dev", np.array([3, 4, 0, 1]), dev))
    assert right["f1"] == right["precision"] == right["recall"] == right["token_accuracy"] == 1.0
    # bert is lost, rome begins with I-, which conlleval takes: 1 of 2 in the text, of 2 predicted.
    logits = logits_saying(task, "dev", np.array([3, 0, 0, 2]), dev)
    assert task.score("dev", logits)["f1"] == 0.5
    (path,) = task.write_predictions("dev", logits, tmp_path)
    assert path.read_text() == (
        "annaka B-PER B-PER\nbert I-PER O\nruns O O\n\nrome B-LOC I-LOC\n\n"
    )
    assert data.read(path).words == 4


def test_the_names_of_scores_do_not_depend_on_what_is_predicted(open_ner, dev_words, tmp_path):
    task = open_ner(dev="anna B-PER\nruns O\n")
    dev = dev_words(task)
    by_prediction = [
        task.score("dev", logits_saying(task, "dev", np.array(numbers), dev)).keys()
        for numbers in ([3, 0], [3, 1])  # the second finds a LOC, which dev has not
    ]
    assert by_prediction[0] == by_prediction[1] == task.baseline.keys()


def test_a_test_file_may_have_words_alone(open_ner, dev_words, tmp_path):
    task = open_ner(test="anna\nrome\n")
    rows = task.splits["test"]
    assert rows.token_labels == {}
    logits = np.zeros((1, 8, task.classes), np.float32)
    logits[..., 3] = 1.0
    (path,) = task.write_predictions("test", logits, tmp_path)
    assert path.name == "test.conll"
    assert path.read_text() == "anna B-PER\nrome B-PER\n\n"
    # A space within a word or a type does not become a column.
    task = open_ner("anna\tB-art work\n", "anna rome\tB-art work\nruns\tO\n")
    (path,) = task.write_predictions("dev", np.zeros((1, 6, task.classes)), tmp_path)
    assert path.read_text() == "anna_rome B-art_work O\nruns O O\n\n"
    assert read_score(path).overall.gold == 1


def test_baselines_are_no_entity_and_the_commonest_tag_of_each_word(open_ner):
    train = "anna B-PER\n\nanna B-PER\n\nanna O\n\nrome B-LOC\n"
    task = open_ner(train=train, dev="anna B-PER\nzzz B-LOC\nruns O\n")
    assert task.baseline["f1"] == 0.0
    assert task.baseline["token_accuracy"] == pytest.approx(1 / 3)
    # anna is right, zzz unseen: precision 1, recall 1/2.
    assert "F1 66.7%" in task.notes[-1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": "anna O\n"}, "has no entity"),
        ({"dev": "anna\n"}, "dev.txt has one column, words without tags"),
        ({"max_seq_length": 2}, "config.data.max_seq_length is 2"),
        (
            {"test": "anna B-PER\n\nruns O\nrome B-ORG\n"},
            r"test\.txt row 4 .*'ORG'.*LOC, PER: correct the row",
        ),
    ],
)
def test_what_cannot_be_learnt_from_is_refused(open_ner, changes, words):
    with pytest.raises(ValueError, match=words):
        open_ner(**changes)


def test_sentencepiece_marks_each_word_as_one(open_ner, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("anna and bert run to rome\n" * 20)
    sentencepiece.SentencePieceTrainer.Train(
        input=str(text),
        model_prefix=str(tmp_path / "pieces"),
        vocab_size=24,
        hard_vocab_limit=False,
        control_symbols="[PAD],[CLS],[SEP],[MASK]",
        unk_piece="[UNK]",
        minloglevel=2,
    )
    vocabulary = load_vocabulary(tmp_path / "pieces.model")
    task = open_ner(max_seq_length=32, words=vocabulary)
    rows, pieces = task.splits["dev"], vocabulary.pieces()
    weights = rows.token_labels["label_weights"]
    starts = [pieces[i] for i in rows.token_ids[weights > 0]]
    assert len(starts) == 3 and all(piece.startswith("\u2581") for piece in starts)


@pytest.mark.slow
def test_the_whole_of_wnut_17_keeps_every_word(shared_data, uncased):
    options = TaskOptions(task="ner", dir=str(shared_data / "ner" / "wnut17"), max_seq_length=128)
    task = ner.open_task(options, load_vocabulary(uncased))
    # Sentences and words as published; entities are what `grep -c B-` counts.
    counts = {
        "train": (62_730, "3,394 sentences, 62,730 words, 1,975 entities, IOB2"),
        "dev": (15_733, "1,009 sentences, 15,733 words, 836 entities, IOB2"),
        "test": (23_394, "1,287 sentences, 23,394 words, 1,079 entities, IOB2"),
    }
    for (split, (words, found)), note in zip(counts.items(), task.notes, strict=False):
        rows = task.splits[split]
        assert rows.token_labels["label_weights"].sum() == words
        assert rows.lengths_N.max() <= 128
        assert found in note
    assert task.classes == 13


def test_predictions_equal_to_gold_score_1_through_windows(open_ner, dev_words, tmp_path):
    dev = ("anna B-PER\nbert I-PER\nrome B-LOC\n" * 5) + "runs O\n"
    task = open_ner(dev=dev, max_seq_length=5)
    rows = dev_words(task, max_seq_length=5)
    numbers = np.array([task.labels.index(tag) for tags in rows.gold for tag in tags])
    logits = logits_saying(task, "dev", numbers, rows)
    assert task.score("dev", logits)["f1"] == 1.0
    assert score_entities(rows.gold, rows.choose_tags(logits, task.labels)).overall.correct == 10


def test_the_first_sentence_is_shown_and_types_that_read_the_same_are_refused(open_ner):
    assert open_ner().example == Example(("anna bert runs",), "B-PER I-PER O")
    with pytest.raises(ValueError, match=r"'PER' .*train\.txt row 1.* 'PER\\u200b' .* row 2\)"):
        open_ner(train=TRAIN.replace("I-PER", "I-PER\u200b"))
    cased = open_ner(train=TRAIN.replace("I-PER", "I-Per"))
    assert ["'PER'" in warning and "'Per'" in warning for warning in cased.warnings] == [True]
