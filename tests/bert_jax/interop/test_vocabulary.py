"""Which list beside a checkpoint is read, and as what; tokenizers that are not BERT's."""

import base64
import dataclasses
import json
import pathlib
import re

import pytest
import sentencepiece
import tokenizers

from bert_jax.interop import vocabulary
from bert_jax.runtime import run_record
from data_pipeline.io import Refused
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab.offsets import PieceAligner
from data_pipeline.vocab.template import make_bert_template
from data_pipeline.vocab.tokenizer_json import make_tokenizer_json, write_tokenizer_json
from data_pipeline.vocab.train import train_vocabulary
from data_pipeline.vocab.wordpiece import make_wordpiece_tokenizer
from tests.bert_jax.small_checkpoints import PIECES
from tests.data_pipeline.encoded import WORDS, train_model
from tests.data_pipeline.vocab.test_byte_level import write_two_files
from tests.golden import sentencepiece_rules

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def write(folder, pieces, tokenizer_config=None, tokenizer=None):
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces))
    if tokenizer_config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(tokenizer.to_str())
    return folder


@pytest.mark.parametrize(
    ("more", "tokenizer_config", "lowercase"),
    [
        ([], None, True),
        (["Cat", "Dog"], None, False),
        ([], {"do_lower_case": False}, False),
        (["Cat"], {"do_lower_case": True, "strip_accents": None}, True),
        ([], {"do_lower_case": False, "tokenize_chinese_chars": True}, False),
    ],
    ids=["as it looks", "capitals", "said", "said against looks", "all said"],
)
def test_the_case_is_as_it_is_said_or_looks(tmp_path, more, tokenizer_config, lowercase):
    folder = write(tmp_path, [*PIECES, *more], tokenizer_config)
    read = vocabulary.read(folder)
    assert (read.lowercase, read.pieces()) == (lowercase, [*PIECES, *more])


def test_capitals_that_transformers_would_lowercase_are_noted(tmp_path, capsys):
    vocabulary.read(write(tmp_path, [*PIECES, "Cat"]))
    assert "vocab.txt has pieces with capitals, so the case" in capsys.readouterr().out
    vocabulary.read(write(tmp_path, [*PIECES, "Cat"], {"do_lower_case": False}))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("place", ["tokenizer_config.json", "tokenizer.json"])
def test_truncation_on_the_left_is_noted(tmp_path, capsys, place):
    tokenizer = make_wordpiece_tokenizer(PIECES, "[UNK]", lowercase=True)
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_truncation(3, direction="left" if place == "tokenizer.json" else "right")
    settings = {"truncation_side": "left"} if place == "tokenizer_config.json" else {}
    vocabulary.read(write(tmp_path, PIECES, {"do_lower_case": True} | settings, tokenizer))
    assert f"{tmp_path} truncates texts on the left" in capsys.readouterr().out
    tokenizer.no_truncation()
    vocabulary.read(write(tmp_path, PIECES, {"padding_side": "left"}, tokenizer))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("text", ["a cat [SEP] dog", "[MASK]s.[UNK]", "a [sep] cat", "A cat"])
def test_a_list_has_the_ids_of_the_tokenizers_library_where_a_text_spells_special_tokens(
    tmp_path, text
):
    folder = write(tmp_path, PIECES)
    theirs = tokenizers.BertWordPieceTokenizer(str(folder / "vocab.txt"))
    expected = theirs.encode(text, add_special_tokens=False).ids
    assert vocabulary.read(folder).encode([text])[0].tolist() == expected
    # Also next to the tokenizer.json that was exported from it; in training text they are text.
    write_tokenizer_json(load_vocabulary(folder / "vocab.txt"), folder)
    read = vocabulary.read(folder)
    assert (read.path.name, read.encode([text])[0].tolist()) == ("vocab.txt", expected)
    in_training = load_vocabulary(folder / "vocab.txt").encode([text])[0].tolist()
    assert not {2, 3, 4} & {*in_training}
    (folder / "tokenizer.json").unlink()
    splits = vocabulary.read(write(folder, PIECES, {"split_special_tokens": True}))
    assert splits.encode([text])[0].tolist() == in_training


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize(
    "make",
    [
        lambda token: {"added_tokens_decoder": {"5": {"content": token}}},
        lambda token: {"additional_special_tokens": [token]},
        lambda token: {"additional_special_tokens": [{"content": token, "lstrip": False}]},
        lambda token: {"extra_special_tokens": {"entity_token": token}},
        lambda token: {"bos_token": {"content": token}, "eos_token": "[END]"},
    ],
)
def test_an_added_token_that_a_list_would_cut_is_refused(tmp_path, name, make):
    folder = write(tmp_path, [*PIECES, "[E1]"])
    for settings in (make("cat"), make("[MASK]"), {"additional_special_tokens": None}):
        (folder / name).write_text(json.dumps(settings))
        vocabulary.read(folder)
    (folder / name).write_text(json.dumps(make("[E1]")))
    with pytest.raises(Refused, match=f"{name} has 1 added tokens .* such as '.E1.', and a vocab"):
        vocabulary.read(folder)


@pytest.mark.parametrize("flag", ["single_word", "lstrip", "rstrip", "normalized"])
def test_an_added_token_that_two_files_find_elsewhere_is_noted(tmp_path, flag, capsys):
    tokenizer = make_wordpiece_tokenizer(PIECES, "[UNK]", lowercase=True)
    tokenizer.add_tokens([tokenizers.AddedToken("cat", **{flag: True})])
    for value in (True, False):
        token = {"content": "cat", flag: value}
        settings = {"do_lower_case": True, "added_tokens_decoder": {"6": token, "5": "a"}}
        write(tmp_path, PIECES, settings, tokenizer)
        assert vocabulary.read(tmp_path).size == len(PIECES)
        assert (f"token 'cat' by other rules ({flag}) than" in capsys.readouterr().out) != value


def test_a_tokenizer_json_that_has_special_tokens_as_pieces_alone(tmp_path):
    """Those with a role are read as in transformers; others are refused."""
    tokenizer = make_wordpiece_tokenizer([*PIECES, "[E1]"], "[UNK]", lowercase=True)
    folder = write(tmp_path, [*PIECES, "[E1]"], {"do_lower_case": True}, tokenizer)
    (folder / "vocab.txt").unlink()
    assert vocabulary.read(folder).encode(["[MASK] [SEP]"])[0].tolist() == [4, 3]
    settings = {"extra_special_tokens": ["[E1]"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(Refused, match=r"such as '\[E1\]', and a tokenizer\.json alone cuts them"):
        vocabulary.read(folder)
    settings["split_special_tokens"] = True
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert not {3, 4, 12} & {*vocabulary.read(folder).encode(["[MASK] [SEP] [E1]"])[0].tolist()}


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("role", ["cls", "sep", "mask"])
def test_a_special_token_of_another_spelling_is_refused(tmp_path, name, role):
    """transformers builds rows of the token that these files name, whatever the template has."""
    folder = write(tmp_path, PIECES)
    for token in (f"[{role.upper()}]", "no piece"):
        (folder / name).write_text(json.dumps({f"{role}_token": token}))
        assert vocabulary.read(folder).pieces() == PIECES
    for token in ("cat", {"content": "[UNK]"}):
        (folder / name).write_text(json.dumps({f"{role}_token": token}))
        with pytest.raises(Refused, match=rf"{name} has {role}_token '.*' in that role; write"):
            vocabulary.read(folder)


def test_an_added_token_that_a_vocab_json_would_cut_is_refused(tmp_path):
    write_two_files(tmp_path)
    assert vocabulary.read(tmp_path).pieces()[5] == "[unused0]"
    decoder = {"0": {"content": "<pad>"}, "5": {"content": "[unused0]"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    with pytest.raises(Refused, match=r"such as '\[unused0\]', and a vocab\.json alone"):
        vocabulary.read(tmp_path)


@pytest.mark.parametrize(
    ("config", "settings", "segments"),
    [
        ({}, {}, 1),
        ({}, {"tokenizer_class": "DistilBertTokenizer"}, 0),
        ({"tokenizer_class": "DistilBertTokenizerFast"}, {}, 0),
        ({}, {"tokenizer_class": "RobertaTokenizerFast"}, 0),
        ({}, {"tokenizer_class": "XLMRobertaTokenizer"}, 0),
        ({"model_type": "roberta"}, {}, 0),
        ({"model_type": "roberta"}, {"tokenizer_class": "BertTokenizer"}, 1),
        *(
            ({}, {"tokenizer_class": name, **written}, int(not written or name == "BertTokenizer"))
            for name in ("TokenizersBackend", "AlbertTokenizer", "BertTokenizer")
            for written in ({"backend": "tokenizers"}, {})
        ),
        (
            {},
            {"tokenizer_class": "DistilBertTokenizer", "model_input_names": ["token_type_ids"]},
            1,
        ),
    ],
)
def test_a_tokenizer_without_segments_gives_none(tmp_path, config, settings, segments):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **config}))
    read = vocabulary.read(write(tmp_path, PIECES, settings))
    assert max(segment for _, segment in read.template.pair) == segments


@pytest.mark.parametrize("name", ["model_max_length", "max_len"])
def test_the_longest_row_has_an_older_name(tmp_path, name):
    """As in transformers 4.57 and 5.24; a float stands for no limit."""
    for limit, read in ((128, 128), (1e30, 0)):
        write(tmp_path, PIECES, {name: limit})
        assert vocabulary.read_max_length(tmp_path) == read


def test_a_tokenizer_json_that_adds_no_special_tokens_is_noted(tmp_path, capsys):
    folder = write(tmp_path, PIECES, None, make_tokenizer())
    assert [part for part, _ in vocabulary.read(folder).template.single] == [2, "A", 3]
    assert "tokenizer.json puts no special tokens around texts" in capsys.readouterr().out


@pytest.mark.parametrize("has_list", [True, False])
def test_ids_around_a_text_that_no_piece_has_are_refused(tmp_path, has_list):
    tokenizer = make_tokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 101))
    folder = write(tmp_path, PIECES, None, tokenizer)
    if not has_list:
        (folder / "vocab.txt").unlink()
    with pytest.raises(Refused, match="puts the id 101 around texts, and it has 12 pieces"):
        vocabulary.read(folder)


def make_tokenizer(lowercase: bool = True, pieces: list[str] = PIECES) -> tokenizers.Tokenizer:
    tokenizer = make_wordpiece_tokenizer(pieces, "[UNK]", lowercase)
    tokenizer.add_special_tokens(["[SEP]", "[E1]"])
    return tokenizer


def test_the_tokenizer_json_beside_a_list_decides(tmp_path):
    """Its rules, its case, its further special tokens, read where a text spells them."""
    tokenizer = make_tokenizer()
    tokenizer.normalizer = tokenizers.normalizers.Replace("x", "cat")
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    folder = write(tmp_path, PIECES, {"model_max_length": 512}, tokenizer)
    read = vocabulary.read(folder)
    text = "a x [E1]dog Cat"
    assert read.encode([text])[0].tolist() == tokenizer.encode(text).ids
    assert (read.path.name, read.lowercase, read.size) == ("tokenizer.json", False, 12)


def test_the_list_that_a_tokenizer_json_was_exported_from_decides(tmp_path):
    """Stores and runs made with the list keep their vocabulary, to the byte."""
    for lowercase in (True, False):
        write(tmp_path, PIECES)
        source = load_vocabulary(tmp_path / "vocab.txt", lowercase, checks_case=False)
        write_tokenizer_json(source, tmp_path)
        read = vocabulary.read(tmp_path)
        assert (read.path, read.lowercase) == (tmp_path / "vocab.txt", lowercase)
        assert read.digest == source.digest


def test_the_model_that_a_tokenizer_json_was_exported_from_decides(tmp_path):
    """Versions of tokenizers round scores in their last digit; another score is another model."""
    path = tmp_path / "spiece.model"
    lines = ["a cat sees a dog", "the dogs see two cats", "no cat has seen it"] * 9
    path.write_bytes(train_vocabulary("unigram", lambda: iter(lines), 79, True).file_bytes)
    write_tokenizer_json(load_vocabulary(path), tmp_path)
    exported = json.loads((tmp_path / "tokenizer.json").read_text())
    for change, file in ((0.0, "spiece.model"), (1e-15, "spiece.model"), (1e-6, "tokenizer.json")):
        changed = [[piece, score * (1 + change)] for piece, score in exported["model"]["vocab"]]
        settings = exported | {"model": exported["model"] | {"vocab": changed}}
        (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
        assert vocabulary.read(tmp_path).path.name == file


def test_files_that_contradict_each_other_in_case_are_refused(tmp_path):
    folder = write(tmp_path, PIECES, {"do_lower_case": False}, make_tokenizer(lowercase=True))
    with pytest.raises(ValueError, match=r"do_lower_case False, .* next to it True"):
        vocabulary.read(folder)


BERT = {"tokenizer_class": "BertTokenizer"}


@pytest.mark.parametrize(
    ("lowercase", "tokenizer_config", "words"),
    [
        (True, {"strip_accents": False, **BERT}, "has strip_accents False, .* it True"),
        (True, {"tokenize_chinese_chars": False, **BERT}, "has tokenize_chinese_chars False"),
        (False, BERT, "has no do_lower_case, which BertTokenizer takes as True, .* it False"),
        ("NFC", BERT, "has no do_lower_case, which BertTokenizer takes as True, .* it False"),
        ("NFC", {"do_lower_case": False, **BERT}, None),
        ("NFC", {"tokenizer_class": "PreTrainedTokenizerFast"}, None),
        (False, {"do_lower_case": False, **BERT}, None),
        (True, {"strip_accents": False, "tokenizer_class": "PreTrainedTokenizerFast"}, None),
        (False, None, None),  # as a trainer of tokenizers writes it
    ],
)
def test_rules_that_a_class_takes_from_its_own_file_are_refused_where_they_differ(
    tmp_path, lowercase, tokenizer_config, words
):
    """As transformers 4.57 and 5.24 do: these classes replace the rules of tokenizer.json."""
    tokenizer = make_tokenizer(lowercase is True)
    if lowercase == "NFC":
        tokenizer.normalizer = tokenizers.normalizers.NFC()
    tokenizer.add_tokens(["[E2]"])  # not our export
    folder = write(tmp_path, PIECES, tokenizer_config, tokenizer)
    (folder / "vocab.txt").unlink()
    if words is None:
        assert vocabulary.read(folder).lowercase is (lowercase is True)
    else:
        with pytest.raises(Refused, match=words):
            vocabulary.read(folder)


@pytest.mark.parametrize(
    ("model_type", "change", "words"),
    [
        ("bert", {}, ""),
        (
            "bert",
            {"normalizer": "Lowercase"},
            "rules (BertPreTokenizer, Lowercase) that bert of tr",
        ),
        (
            "bert",
            {"pre_tokenizer": "Whitespace"},
            "rules (BertNormalizer, Whitespace) that bert of",
        ),
        (
            "electra",
            {"longest": 200},
            "words of up to 200 characters) that electra of transformers",
        ),
        ("bert", {"settings": None, "lowercase": False}, "of transformers takes do_lower_case as "),
        ("modernbert", {"normalizer": "Lowercase", "longest": 200}, ""),
        ("xlm-roberta", {"normalizer": "Lowercase"}, "(BertPreTokenizer, Lowercase) that xlm-rob"),
        ("electra", {"second": 0}, "puts special tokens or segments around texts that electra of"),
        ("modernbert", {"second": 0}, ""),
    ],
)
def test_rules_that_a_class_replaces_in_one_version_are_noted(
    tmp_path, capsys, model_type, change, words
):
    """transformers 4.57 follows tokenizer.json there, 5.24 does not; without settings, neither."""
    data = json.loads(make_tokenizer(change.get("lowercase", True)).to_str())
    data["model"]["max_input_chars_per_word"] = change.get("longest", 100)
    template = make_bert_template({"cls": 2, "sep": 3}, 1, change.get("second", 1))
    if model_type == "xlm-roberta":
        template = make_bert_template({"cls": 2, "sep": 3}, 2, 0)
    data["post_processor"] = template.make_processor(PIECES)
    data |= {
        part: {"type": change[part]} for part in change.keys() & {"normalizer", "pre_tokenizer"}
    }
    write(tmp_path, [*PIECES, "[E1]"], change.get("settings", {"do_lower_case": True}))
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert vocabulary.read(tmp_path).path.name == "tokenizer.json"
    notes = capsys.readouterr().out.splitlines()
    assert [words in line for line in notes] == [True] * bool(words), notes


@pytest.mark.parametrize(
    ("name", "of_file", "tokenizer_config", "words"),
    [
        ("RobertaTokenizer", False, {"add_prefix_space": True}, "has add_prefix_space True"),
        ("RobertaTokenizer", True, {}, "has no add_prefix_space, which RobertaTokenizer takes as"),
        ("PreTrainedTokenizerFast", False, {"add_prefix_space": True}, "has add_prefix_space True"),
        ("PreTrainedTokenizerFast", True, {}, None),
    ],
)
def test_the_space_before_a_text_is_refused_where_two_files_differ(
    tmp_path, name, of_file, tokenizer_config, words
):
    pieces = [*SPECIAL, *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE({p: i for i, p in enumerate(pieces)}, [])
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=of_file)
    tokenizer.add_special_tokens(SPECIAL)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    settings = {"tokenizer_class": name, **tokenizer_config}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    if words is None:
        assert vocabulary.read(tmp_path).adds_space_before is of_file
    else:
        with pytest.raises(Refused, match=words):
            vocabulary.read(tmp_path)


def test_special_tokens_that_a_tokenizer_splits_are_text(tmp_path):
    folder = write(tmp_path, PIECES, {"split_special_tokens": True}, make_tokenizer())
    (folder / "vocab.txt").unlink()
    ids = vocabulary.read(folder).encode(["[SEP]"])[0].tolist()
    assert PIECES.index("[SEP]") not in ids


@pytest.mark.parametrize(
    ("tokenizer_config", "words"),
    [
        ({"do_lower_case": True, "strip_accents": False}, "strip_accents is False, not True"),
        ({"strip_accents": False}, "strip_accents is False, not True"),
        ({"do_lower_case": True, "tokenize_chinese_chars": False}, "tokenize_chinese_chars"),
        ({"do_lower_case": False, "word_tokenizer_type": "mecab"}, "word_tokenizer_type is mecab"),
        ({"subword_tokenizer_type": "character"}, "subword_tokenizer_type is character, not word"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize is False, not True; give a checkpoint"),
    ],
)
def test_a_tokenizer_of_other_rules_is_refused(tmp_path, tokenizer_config, words):
    with pytest.raises(ValueError, match=f"cuts text differently from BERT: {words}"):
        vocabulary.read(write(tmp_path, PIECES, tokenizer_config))


def test_tokens_that_were_added_beside_the_list_are_not_lost(tmp_path):
    folder = write(tmp_path, PIECES)
    (folder / "added_tokens.json").write_text(json.dumps({PIECES[-1]: len(PIECES) - 1}))
    assert vocabulary.read(folder).pieces() == PIECES
    (folder / "added_tokens.json").write_text(json.dumps({"[END]": 13, "[BEGIN]": 12}))
    words = r"such as .\[BEGIN\].* vocab\.txt alone lacks them; write the tokenizer\.json"
    with pytest.raises(Refused, match=f"has 2 added tokens .*{words}"):
        vocabulary.read(folder)
    (folder / "added_tokens.json").unlink()
    decoder = {"0": {"content": PIECES[0]}, "12": {"content": "[BEGIN]"}}
    write(folder, PIECES, {"added_tokens_decoder": decoder})
    with pytest.raises(Refused, match=f"has 1 added tokens .*{words}"):
        vocabulary.read(folder)


def test_a_list_that_its_tokenizer_json_contradicts_is_refused(tmp_path):
    folder = write(tmp_path, PIECES)
    write(folder, PIECES, tokenizer=make_tokenizer())
    assert vocabulary.read(folder).pieces() == [*PIECES, "[E1]"]
    for changed in (
        [*PIECES[:-2], PIECES[-1], PIECES[-2]],
        PIECES[:-1],
        [*PIECES[:6], *PIECES[7:]],
    ):
        with pytest.raises(ValueError, match=r"vocab\.txt (has '|lacks 1 ).*tokenizer\.json next"):
            vocabulary.read(write(folder, changed))


@pytest.mark.parametrize(
    "lines",
    [
        [*PIECES, ""],
        [*PIECES, "", ""],
        [*PIECES[:6], "", "", *PIECES[6:]],
        [*PIECES[:6], PIECES[-1], *PIECES[6:]],
        [*PIECES, "\u3000", PIECES[-1] + "\u00a0"],
    ],
    ids=["blank end", "blank ends", "blank", "twice", "spaces"],
)
def test_a_tokenizer_json_made_from_an_untidy_list_is_read(tmp_path, lines):
    """As transformers makes it: blank lines and spaces are pieces, the last of two lines counts."""
    tokenizer = make_wordpiece_tokenizer(lines, "[UNK]", True)
    tokenizer.add_special_tokens(["[SEP]"])
    id_of = tokenizer.get_vocab()
    text = f"a cat saw [SEP] {PIECES[-1]}"
    read = vocabulary.read(write(tmp_path, lines, tokenizer=tokenizer))
    assert read.path.name == "tokenizer.json"
    assert read.encode([text])[0].tolist() == tokenizer.encode(text).ids
    assert [read.pieces()[number] for number in id_of.values()] == [*id_of]


def test_a_list_next_to_a_unigram_model_has_its_pieces_or_is_refused(tmp_path):
    pieces = [*PIECES[:5], "\u2581", "a", "cat"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram([(p, 0.0) for p in pieces], 1))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(pieces[:5])
    folder = write(tmp_path, pieces, tokenizer=tokenizer)
    assert vocabulary.read(folder).path.name == "tokenizer.json"
    with pytest.raises(Refused, match=r"vocab\.txt lacks 1 .*, or remove the one of the two"):
        vocabulary.read(write(folder, PIECES))


ALBERT = {"tokenizer_class": "AlbertTokenizer"}


def write_model(path):
    content = pathlib.Path(sentencepiece_rules.__file__).with_suffix(".json").read_text()
    path.write_bytes(base64.b64decode(json.loads(content)["model"]))


@pytest.mark.parametrize(
    ("model_type", "settings", "rules"),
    [
        ("albert", {}, "albert"),
        ("xlnet", {}, "xlnet"),
        ("bert", {}, "none"),
        ("albert", {"do_lower_case": False, "keep_accents": True}, "xlnet+keep_accents"),
        ("bert", ALBERT | {"remove_space": False}, "albert+keep_spaces"),
        ("albert", {"tokenizer_class": "PreTrainedTokenizerFast"}, "none"),
    ],
)
def test_a_bare_model_is_read_by_the_rules_of_its_authors(tmp_path, model_type, settings, rules):
    write_model(tmp_path / "spiece.model")
    of_model = {"model_type": model_type}
    (tmp_path / "config.json").write_text(json.dumps(of_model))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    read = vocabulary.read(tmp_path)
    assert read.sentencepiece_rules == rules
    if "tokenizer_class" in settings:  # which may stand in config.json instead
        of_class = {"tokenizer_class": settings["tokenizer_class"]}
        (tmp_path / "config.json").write_text(json.dumps(of_model | of_class))
        rest = {name: value for name, value in settings.items() if name not in of_class}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(rest))
        assert vocabulary.read(tmp_path).sentencepiece_rules == rules
    record = {"vocabulary": run_record.make_vocabulary_record(read, "spiece.model")}
    run_record.check_vocabulary(read, record, "the run")
    assert ("sentencepiece_rules" in record["vocabulary"]) == (rules != "none")
    other = dataclasses.replace(read, sentencepiece_rules="albert+keep_accents")
    words = rf"sentencepiece_rules is 'albert\+keep_accents', not '{re.escape(rules)}'"
    with pytest.raises(Refused, match=words):
        run_record.check_vocabulary(other, record, "the run")


@pytest.mark.parametrize("model_type", ["bert", "xlnet"])
def test_special_tokens_that_a_text_spells_are_read_next_to_a_model_alone(tmp_path, model_type):
    """As by tokenizers of transformers: SentencePiece encodes each text between them."""
    write_model(tmp_path / "spiece.model")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"mask_token": "[MASK]"}))
    processor = sentencepiece.SentencePieceProcessor(str(tmp_path / "spiece.model"))
    expected = [*processor.Encode("the price"), 4, *processor.Encode("is"), 3]
    text = "the price [MASK]is [SEP]"
    read = vocabulary.read(tmp_path)
    assert read.encode([text, "is"])[0].tolist() == [*expected, *processor.Encode("is")]
    aligned = PieceAligner(read).encode(text)
    assert aligned.ids_T.tolist() == expected
    mask = expected.index(4)
    assert text[aligned.starts_T[mask] : aligned.ends_T[mask]] == "[MASK]"
    splits = {"split_special_tokens": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(splits))
    assert not {3, 4} & {*vocabulary.read(tmp_path).encode([text])[0].tolist()}


def test_a_model_without_a_mask_has_one_behind_its_pieces(tmp_path):
    """DeBERTa-v3's, with its added_tokens.json; exported, the tokenizers library says the same."""
    specials = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
    names = {f"{name}_piece": piece for name, piece in specials.items()}
    names |= {f"{name}_id": number for number, name in enumerate(specials)}
    (tmp_path / "spm.model").write_bytes(train_model(**names))
    processor = sentencepiece.SentencePieceProcessor(str(tmp_path / "spm.model"))
    mask = processor.GetPieceSize()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[MASK]": mask}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deberta-v2"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    read = vocabulary.read(tmp_path)
    assert read.special_ids == {"pad": 0, "cls": 1, "sep": 2, "unk": 3, "mask": mask}
    assert (read.size, read.pieces()[-1]) == (mask + 1, "[MASK]")
    ids = processor.Encode(WORDS[7])
    assert read.encode([WORDS[7]])[0].tolist() == ids
    assert read.decode([*ids[:2], mask, *ids[2:]]) == processor.Decode(ids)
    written = tokenizers.Tokenizer.from_str(make_tokenizer_json(read))
    assert written.encode(f"{WORDS[7]} [MASK]").ids == [1, *ids, mask, 2]
    spelled = f"{WORDS[7]} [MASK] {WORDS[8]}"
    theirs = written.encode(spelled, add_special_tokens=False).ids
    assert read.encode([spelled])[0].tolist() == theirs and mask in theirs


@pytest.mark.parametrize(
    "setting",
    [{"do_lower_case": True}, {"word_tokenizer_type": "mecab"}, {"split_by_punct": True}],
)
def test_a_bare_model_whose_text_others_prepare_is_refused(tmp_path, setting):
    write_model(tmp_path / "spiece.model")
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"do_lower_case": False, "word_tokenizer_type": None}))
    assert vocabulary.read(tmp_path).sentencepiece_rules == "none"
    path.write_text(json.dumps(setting))
    with pytest.raises(Refused, match=next(iter(setting))):
        vocabulary.read(tmp_path)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("config.json", {"model_type": "xlm-roberta"}),
        ("tokenizer_config.json", {"tokenizer_class": "CamembertTokenizer"}),
    ],
)
def test_a_bare_model_whose_ids_its_tokenizer_shifts_is_refused(tmp_path, name, settings):
    write_model(tmp_path / "sentencepiece.bpe.model")
    (tmp_path / name).write_text(json.dumps(settings))
    with pytest.raises(Refused, match=r"no tokenizer\.json"):
        vocabulary.read(tmp_path)
