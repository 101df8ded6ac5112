"""Read the vocabulary next to a third-party checkpoint, and check that the two match."""

import dataclasses
import functools
import json
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.interop import model_json
from data_pipeline.io import Refused, small_files
from data_pipeline.vocab import LIST, Vocabulary, load_vocabulary
from data_pipeline.vocab import TOKENIZER_JSON as TOKENIZER
from data_pipeline.vocab.byte_level import PIECES
from data_pipeline.vocab.sentencepiece_model import NO_RULES, name_rules
from data_pipeline.vocab.template import (
    SPECIAL_PIECES,
    Template,
    make_bert_template,
    make_xlnet_template,
    read_template,
)
from data_pipeline.vocab.tokenizer_json import make_tokenizer_json
from data_pipeline.vocab.wordpiece import is_cased, read_list

TOKENIZER_CONFIG, ADDED = "tokenizer_config.json", "added_tokens.json"
SPECIAL_MAP = "special_tokens_map.json"
# Keys of added tokens in TOKENIZER_CONFIG and SPECIAL_MAP: by id, in a list, or by name.
_ADDED_KEYS = ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")  # where an added token is found
CONFIG, XLNET = "config.json", "xlnet"  # a model's settings, and a model_type in them
ANY_CLASS = "PreTrainedTokenizerFast"  # tokenizer_class written with a tokenizer.json
# Tokenizers and models whose code prepares text for a SentencePiece model -> whether it lowercases.
_LOWERCASES = {
    **dict.fromkeys(("albert", "AlbertTokenizer", "AlbertTokenizerFast"), True),
    **dict.fromkeys((XLNET, "XLNetTokenizer", "XLNetTokenizerFast"), False),
}
# Tokenizers and models whose ids are not those in the SentencePiece model next to them.
_SHIFTED = {
    *("camembert", "CamembertTokenizer", "CamembertTokenizerFast"),
    *("xlm-roberta", "XLMRobertaTokenizer", "XLMRobertaTokenizerFast"),
}
# Spare rows that a word table may have: padding to a multiple of this, or one row in so many.
_PADDED_TO = 128
_MAX_SPARE = 10
_SCORE_ERROR = 1e-12  # SentencePiece's scores are float32, seven digits
# Settings of a tokenizer that change where text is cut -> the value in BERT.
_RULES = {
    "tokenize_chinese_chars": True,
    "do_basic_tokenize": True,
    "word_tokenizer_type": "basic",  # Japanese BERTs have mecab
    "subword_tokenizer_type": "wordpiece",  # some Japanese BERTs cut words to characters
}
# Rules that these tokenizers and models take from tokenizer_config.json in place of tokenizer.json,
# with the values where it has none. Source: transformers 4.57 and 5.24.
_BERT_RULES = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
_CLASS_RULES: dict[str, dict[str, bool | None]] = {
    name: {"add_prefix_space": False} if kind == "Roberta" else _BERT_RULES
    for kind in ("Bert", "DistilBert", "Electra", "Roberta")
    for name in (kind.lower(), f"{kind}Tokenizer", f"{kind}TokenizerFast")
}
# Tokenizers and models of these that get no segments unless model_input_names lists them.
_WITHOUT_SEGMENTS = _SHIFTED | {
    name for name in _CLASS_RULES if name.lower().startswith(("distilbert", "roberta"))
}
# Likewise in transformers 5, which writes its own key into TOKENIZER_CONFIG; version 4 gives some.
_WITHOUT_SEGMENTS_5 = {ANY_CLASS, "TokenizersBackend", *_LOWERCASES}
_KEY_OF_5 = "backend"
# Steps that these have in transformers 5 whatever tokenizer.json has, and further ones that may be
# in it and change little.
_OWN_STEPS: dict[str, tuple[set[str], set[str]]] = {
    name: ({"BertNormalizer", "BertPreTokenizer"} if rules is _BERT_RULES else {"ByteLevel"}, set())
    for name, rules in _CLASS_RULES.items()
} | dict.fromkeys(_SHIFTED, ({"Metaspace"}, {"Precompiled", "Replace", "Strip", "WhitespaceSplit"}))
_find_steps = re.compile(r'"type": "(\w+)"').findall
_MAX_WORD_CHARS = 100  # these classes' own


@dataclasses.dataclass(frozen=True)
class _Files:
    """Hold the JSON files next to a vocabulary; {} for a file that is missing."""

    directory: pathlib.Path
    tokenizer: Mapping[str, Any]  # tokenizer.json
    settings: Mapping[str, Any]  # tokenizer_config.json
    config: Mapping[str, Any]  # config.json

    @property
    def model(self) -> Mapping[str, Any]:
        """Return the model of tokenizer.json; {} without."""
        model = self.tokenizer.get("model")
        return model if isinstance(model, dict) else {}

    @property
    def tokenizer_class(self) -> Any:
        """Return tokenizer_class of tokenizer_config.json, else of config.json; None without."""
        return self.settings.get("tokenizer_class") or self.config.get("tokenizer_class")

    @property
    def reads_special_tokens(self) -> bool:
        """Return whether special tokens that a text spells are read as such."""
        return self.settings.get("split_special_tokens") is not True

    @property
    def tokenizer_or_model(self) -> Any:
        """Return the tokenizer's class, or without one the model_type."""
        return self.tokenizer_class or self.config.get("model_type")


def read(directory: pathlib.Path) -> Vocabulary:
    """Read a folder's tokenizer.json, else vocab.txt, the one SentencePiece *.model, or vocab.json.

    A tokenizer.json is run as it stands, and reads special tokens that a text spells; if bert_jax
    exported it, the list or model that it was made from is read instead. Without a tokenizer.json,
    tokenizer_config.json determines lowercasing; without either, a vocabulary without capital
    letters counts as lowercased.

    Raises:
      Refused: there is none, one that cuts text differently from BERT, one that lacks added tokens
        of its other files, or a list or tokenizer_config.json that contradicts the tokenizer.json.
    """
    models = sorted(directory.glob("*.model"))
    candidates = [directory / LIST, *(models if len(models) == 1 else ()), directory / PIECES]
    other = next(filter(pathlib.Path.is_file, candidates), None)
    names = (TOKENIZER, TOKENIZER_CONFIG, CONFIG)
    files = _Files(directory, *(_read_optional(directory / name) for name in names))
    reads_special_tokens = files.reads_special_tokens
    if (directory / TOKENIZER).is_file():
        vocabulary = _read_tokenizer(files, other)
    elif other is None:
        several = f", and {len(models)} *.model files" if models else ""
        raise Refused(
            f"{directory} has no {LIST} and no {TOKENIZER}{several}; put the vocabulary that the "
            "checkpoint was trained with, and no other, into its folder"
        )
    elif other.name == LIST:
        lowercase = _read_lowercase(files, other)
        vocabulary = load_vocabulary(other, lowercase, False, reads_special_tokens)
    else:
        rules = _find_rules(files) if other.suffix == ".model" else NO_RULES
        vocabulary = load_vocabulary(other, reads_special_tokens=reads_special_tokens, rules=rules)
    _check_added(files, vocabulary)
    direction = (files.tokenizer.get("truncation") or {}).get("direction")
    if files.settings.get("truncation_side", str(direction).lower()) == "left":
        note(f"the tokenizer in {directory} truncates texts on the left; here they lose their end")
    return dataclasses.replace(vocabulary, template=_find_template(files, vocabulary))


def _read_optional(path: pathlib.Path) -> dict[str, Any]:
    """Read a file's JSON object; {} without the file."""
    return model_json.read_json(path) if path.is_file() else {}


def read_max_length(directory: pathlib.Path) -> int:
    """Return to how many tokens a folder's tokenizer truncates; 0 without a limit."""
    settings = _read_optional(directory / TOKENIZER_CONFIG)
    limit = settings.get("model_max_length", settings.get("max_len"))  # its name of 2019
    return limit if type(limit) is int else 0


def _find_rules(files: _Files) -> str:
    """Find how text for a SentencePiece model is prepared, by the class of tokenizer or model.

    A tokenizer_config.json written with a tokenizer.json names no such class
    (PreTrainedTokenizerFast).

    Raises:
      Refused: other code than ALBERT's or XLNet's prepares the text, or shifts the ids.
    """
    kind, model_type = files.tokenizer_or_model, str(files.config.get("model_type"))
    if {str(kind), model_type} & _SHIFTED:
        raise Refused(
            f"{files.directory} has a SentencePiece model and no {TOKENIZER}, and {kind} gives "
            f"its pieces other ids than the model does; write the {TOKENIZER} with transformers "
            "(AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR))"
        )
    lowercase = _LOWERCASES.get(kind) if isinstance(kind, str) else None
    if lowercase is None and kind != ANY_CLASS:
        lowercase = _LOWERCASES.get(model_type)
    settings, path = files.settings, files.directory / TOKENIZER_CONFIG
    if lowercase is not None:
        return name_rules(
            lowercase=small_files.field(settings, "do_lower_case", bool, path, lowercase),
            keeps_accents=small_files.field(settings, "keep_accents", bool, path, False),
            removes_spaces=small_files.field(settings, "remove_space", bool, path, True),
        )
    # Source: BertJapaneseTokenizer, DebertaV2Tokenizer@transformers 4.57.
    if names := [*filter(settings.get, ("do_lower_case", "word_tokenizer_type", "split_by_punct"))]:
        raise Refused(
            f"{path} has {names[0]} = {json.dumps(settings[names[0]])}, and text for a "
            "SentencePiece model is prepared so for ALBERT and XLNet alone; remove the setting if "
            f"the model was trained without it, or put its {TOKENIZER} into the same folder"
        )
    return NO_RULES


def _find_template(files: _Files, vocabulary: Vocabulary) -> Template:
    """Find the template in tokenizer.json; without one, take the tokenizer's or the model's."""
    special_ids, path = vocabulary.special_ids, files.directory / TOKENIZER
    template = read_template(files.tokenizer, special_ids, path) if files.tokenizer else None
    if template is None and _ends_with_cls(files):
        template = make_xlnet_template(special_ids)
    elif template is None and files.tokenizer:
        note(
            f"{path} puts no special tokens around texts; here rows are [CLS] A [SEP], and "
            f"{ANY_CLASS} of transformers adds none"
        )
    template, kind = template or vocabulary.template, str(files.tokenizer_or_model)
    second = 1 if _CLASS_RULES.get(kind) is _BERT_RULES else 0
    own = make_bert_template(special_ids, separators=2 - second, second_segment=second)
    if files.tokenizer and kind in _OWN_STEPS and template != own:
        note(
            f"{path} puts special tokens or segments around texts that {kind} of transformers 5 "
            "replaces by its own; here they count, as in version 4"
        )
    inputs = files.settings.get("model_input_names")
    is_one_segment = isinstance(inputs, list) and "token_type_ids" not in inputs
    silent = _WITHOUT_SEGMENTS | (_WITHOUT_SEGMENTS_5 if _KEY_OF_5 in files.settings else set())
    is_one_segment |= inputs is None and kind in silent
    return template.drop_segments() if is_one_segment else template


def _ends_with_cls(files: _Files) -> bool:
    """Return whether rows end with [CLS], as XLNet's do unless the model was trained on a store."""
    kind = files.tokenizer_class
    if isinstance(kind, str) and kind in _LOWERCASES:
        return kind.lower().startswith(XLNET)
    return files.config.get("model_type") == XLNET and files.config.get("summary_type") != "first"


def _read_tokenizer(files: _Files, other: pathlib.Path | None) -> Vocabulary:
    """Read a tokenizer.json, or the file next to it that it was exported from here."""
    _check_rules(files)
    _note_replaced(files)
    normalizer = files.tokenizer.get("normalizer")
    lowercase = normalizer.get("lowercase") if isinstance(normalizer, dict) else None
    if other is not None and other.name != PIECES:
        reads_special_tokens = files.reads_special_tokens
        try:
            source = load_vocabulary(other, lowercase is not False, False, reads_special_tokens)
        except Refused:  # no loss: the tokenizer.json next to it is read
            source = None
        if source and _is_export(files, source):
            return source
    path = files.directory / TOKENIZER
    vocabulary = load_vocabulary(path, reads_special_tokens=files.reads_special_tokens)
    if other is not None and other.name == LIST:
        _check_agrees(files.tokenizer, path, other)
    return vocabulary


def _check_rules(files: _Files) -> None:
    """Raise if tokenizer_config.json contradicts the rules of a tokenizer.json.

    Some classes of transformers follow the first file, others the second. Print a note if there is
    no tokenizer_config.json and the class has other rules.
    """
    asked, kind = files.settings, str(files.tokenizer_or_model)
    normalizer, splitter = files.tokenizer.get("normalizer"), files.tokenizer.get("pre_tokenizer")
    rules: dict[str, Any] = {}
    is_bert = _CLASS_RULES.get(kind) is _BERT_RULES and files.model.get("type") == "WordPiece"
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        lowercase, strip = normalizer.get("lowercase"), normalizer.get("strip_accents")
        rules = {"do_lower_case": lowercase, "strip_accents": lowercase if strip is None else strip}
        rules["tokenize_chinese_chars"] = normalizer.get("handle_chinese_chars")
    elif kind in _LOWERCASES or kind.startswith("DebertaV2Tokenizer") or is_bert:
        marks = ('"Lowercase"', '"lowercase": true')
        rules["do_lower_case"] = any(mark in json.dumps(normalizer) for mark in marks)
    if isinstance(splitter, dict) and splitter.get("type") == "ByteLevel":
        rules["add_prefix_space"] = splitter.get("add_prefix_space")
    # Any class may follow these two where they are set.
    defaults = {"do_lower_case": None, "add_prefix_space": None, **_CLASS_RULES.get(kind, {})}
    for name in filter(rules.__contains__, defaults):
        theirs = asked.get(name, defaults[name])
        if name == "strip_accents" and theirs is None:
            theirs = asked.get("do_lower_case", defaults["do_lower_case"])
        if type(theirs) is type(rules[name]) is bool and theirs != rules[name]:
            says = f"has {name} {theirs}"
            if name not in asked:
                says = f"has no {name}, which {kind} takes as {theirs}"
            if not asked:
                note(
                    f"{files.directory} has no {TOKENIZER_CONFIG}, and {kind} of transformers "
                    f"takes {name} as {theirs} then; here {TOKENIZER} counts, which says "
                    f"{rules[name]}"
                )
                break
            raise Refused(
                f"{files.directory / TOKENIZER_CONFIG} {says}, {TOKENIZER} next to it "
                f'{rules[name]}; correct the one that is wrong: write "{name}": '
                f"{json.dumps(rules[name])} into the first if {TOKENIZER} is right"
            )


def _note_replaced(files: _Files) -> None:
    """Print a note if a tokenizer.json has rules that its class replaces in transformers 5."""
    kind = str(files.tokenizer_or_model)
    rules = [files.tokenizer.get(name) for name in ("normalizer", "pre_tokenizer")]
    steps = {*_find_steps(json.dumps(rules))} - {"Sequence"}
    longest = files.model.get("max_input_chars_per_word", _MAX_WORD_CHARS)
    if longest != _MAX_WORD_CHARS:
        steps.add(f"words of up to {longest} characters")
    own, more = _OWN_STEPS.get(kind, (steps, set()))
    if not own <= steps <= own | more:
        note(
            f"{files.directory / TOKENIZER} has rules ({', '.join(sorted(steps)) or 'none'}) that "
            f"{kind} of transformers 5 replaces by its own; here they count, as in version 4"
        )


def _is_export(files: _Files, source: Vocabulary) -> bool:
    path = files.directory / TOKENIZER
    template = read_template(files.tokenizer, source.special_ids, path) or source.template
    if template.largest_id >= source.size:
        return False
    text = make_tokenizer_json(dataclasses.replace(source, template=template))
    return text is not None and _are_close(json.loads(text), files.tokenizer)


def _are_close(ours: Any, theirs: Any) -> bool:
    """Compare two values of JSON; versions of tokenizers round the scores of pieces differently."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=_SCORE_ERROR)
    if isinstance(ours, dict) and isinstance(theirs, dict):
        same_keys = ours.keys() == theirs.keys()
        return same_keys and all(_are_close(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_are_close, ours, theirs))
    return type(ours) is type(theirs) and bool(ours == theirs)


def _check_agrees(settings: Mapping[str, Any], path: pathlib.Path, other: pathlib.Path) -> None:
    """Raise if a list and a tokenizer.json have different ids, so that one of them was changed."""
    model = small_files.field(settings, "model", dict, path)
    if isinstance(listed := model.get("vocab"), list):  # a Unigram's pieces with their scores
        numbered = [(piece, number) for number, (piece, _) in enumerate(listed)]
    else:
        numbered = [*small_files.field(model, "vocab", dict, path).items()]
    id_of = {piece.strip(): number for piece, number in numbered}  # a list's lines are read so
    pieces = read_list(other, small_files.read_bytes(other))
    # The last line of a piece counts.
    ids = {piece: number for number, piece in enumerate(pieces) if piece}
    problem = ""
    if more := id_of.keys() - {"", *pieces}:
        problem = f"lacks {len(more):,} pieces of {path.name} next to it, such as {min(more)!r}"
    elif moved := [piece for piece in ids if id_of.get(piece, ids[piece]) != ids[piece]]:
        number, theirs = ids[moved[0]], id_of[moved[0]]
        problem = f"has {moved[0]!r} as piece {number}, {path.name} next to it as {theirs}"
    if problem:
        raise Refused(
            f"{other} {problem}; put back the one that was changed, or remove the one of the two "
            "that is wrong"
        )


def _check_added(files: _Files, vocabulary: Vocabulary) -> None:
    """Raise if added tokens of a tokenizer, which have files of their own, would be lost.

    Also raise if the files name another [CLS], [SEP] or [MASK]; another [PAD] is masked like ours.
    Print a note if they find an added token in a text by other rules than tokenizer.json.
    """
    pieces = vocabulary.pieces()
    in_file = {token["content"]: token for token in files.tokenizer.get("added_tokens") or ()}
    by_id = files.settings.get(_ADDED_KEYS[0])
    for given in by_id.values() if isinstance(by_id, dict) else ():
        ours = in_file.get(_spell(given), {}) if isinstance(given, dict) else {}
        flags = [
            flag for flag in _FLAGS if flag in ours and given.get(flag, ours[flag]) != ours[flag]
        ]
        if flags:
            note(
                f"{files.directory / TOKENIZER} finds the added token {ours['content']!r} by other "
                f"rules ({', '.join(flags)}) than {TOKENIZER_CONFIG}, which transformers takes; "
                "here the first counts"
            )
    special_map = _read_optional(files.directory / SPECIAL_MAP)
    for name, tokens in (
        (ADDED, {*_read_optional(files.directory / ADDED)}),
        (TOKENIZER_CONFIG, _list_added(files.settings, pieces)),
        (SPECIAL_MAP, _list_added(special_map, pieces)),
    ):
        path = files.directory / name
        added = tokens - {"", *pieces}
        known = tokens - added - {"", *(pieces[i] for i in vocabulary.special_ids.values())}
        file = vocabulary.path.name
        reads = file in (LIST, PIECES) or (file == TOKENIZER and files.reads_special_tokens)
        cut = {t for t in known if reads and len(vocabulary.encode([t])[0]) != 1}
        if lost := added or cut:
            raise Refused(
                f"{path} has {len(lost):,} added tokens that are read whole, such as "
                f"{min(lost)!r}, and a {file} alone {'lacks' if added else 'cuts'} them; write the "
                f"{TOKENIZER} with transformers (AutoTokenizer.from_pretrained(DIR)"
                f".save_pretrained(DIR)), or remove them from {name} if they are not needed"
            )
    for name, settings in ((TOKENIZER_CONFIG, files.settings), (SPECIAL_MAP, special_map)):
        for role in ("cls", "sep", "mask"):
            theirs, ours = _spell(settings.get(f"{role}_token")), vocabulary.special_ids[role]
            if theirs in pieces and theirs not in ("", pieces[ours]):
                raise Refused(
                    f"{files.directory / name} has {role}_token {theirs!r}, and "
                    f"{vocabulary.path.name} next to it {pieces[ours]!r} in that role; write "
                    f"{pieces[ours]!r} into the first if the model was trained with it, else give "
                    f"a {vocabulary.path.name} that has {theirs!r} in that role"
                )


def _list_added(settings: Mapping[str, Any], pieces: Sequence[str]) -> set[str]:
    """List the added tokens in a tokenizer's settings, and the special ones that are pieces."""
    added = set[str]()
    for given in map(settings.get, _ADDED_KEYS):
        listed = [*given.values()] if isinstance(given, dict) else given
        added.update(map(_spell, listed if isinstance(listed, list) else ()))
    special = {_spell(settings.get(f"{role}_token")) for role in ("bos", "eos", *SPECIAL_PIECES)}
    return added | special.intersection(pieces)


def _spell(token: Any) -> str:
    """Return the text of a special token in a tokenizer's settings; "" without one."""
    return str(token.get("content", "") if isinstance(token, dict) else token or "")


def check_size(vocabulary: Vocabulary, rows: int, place: str) -> None:
    """Raise if a vocabulary does not fit a word table with this many rows.

    More tokens than rows never fit. Fewer are usual, as tables are padded; but a truncated list
    looks the same, so rows without a token are bounded (decision 34).
    """
    pieces = vocabulary.size
    if pieces > rows:
        raise Refused(
            f"{vocabulary.path} has {pieces:,} pieces, but the word table of {place} has "
            f"{rows:,} rows; put the vocabulary that it was trained with into its folder"
        )
    padded = -(-pieces // _PADDED_TO) * _PADDED_TO
    if rows > padded and (rows - pieces) * _MAX_SPARE > rows:
        raise Refused(
            f"{vocabulary.path} has {pieces:,} pieces, but the word table of {place} has {rows:,} "
            f"rows: {rows - pieces:,} ids would have no piece; put the whole vocabulary next to "
            "it, or, if those rows were never used, add a line [unusedN] for each"
        )


def check_segments(template: Template, segments: int, place: str) -> None:
    """Raise if a template's segment ids exceed a model's segments; a model of 0 or 1 ignores them.

    transformers cannot compute such rows either.
    """
    largest = max(segment for _, segment in (*template.single, *template.pair))
    if 1 < segments <= largest:
        raise Refused(
            f"the tokenizer next to {place} puts tokens into segment {largest} (type_id), and its "
            f"config.json has type_vocab_size = {segments}; put back the files that were saved "
            "together"
        )


def _read_lowercase(files: _Files, words: pathlib.Path) -> bool:
    """Return whether text is lowercased: by tokenizer_config.json, else by the list's capitals.

    Raises:
      Refused: the rules of tokenizer_config.json are not BERT's.
    """
    rules = files.settings
    lowercase = rules.get("do_lower_case")
    if type(lowercase) is not bool:
        lowercase = not is_cased(read_list(words, small_files.read_bytes(words)))
        if not lowercase:
            note(
                f"{words} has pieces with capitals, so the case of text is kept; where "
                f"{TOKENIZER_CONFIG} has no do_lower_case, transformers lowercases"
            )
    for name, usual in (_RULES | {"strip_accents": lowercase}).items():
        if rules.get(name) not in (None, usual):
            raise Refused(
                f"{files.directory / TOKENIZER_CONFIG} cuts text differently from BERT: {name} is "
                f"{rules[name]}, not {usual}; give a checkpoint with BERT's rules or with a "
                f"{TOKENIZER}, or remove the file if BERT's are meant"
            )
    return lowercase


@functools.cache  # a command may read a folder several times
def note(text: str) -> None:
    """Print a note on what a checkpoint's files say and how they are read, once per process."""
    print(f"note: {text}", flush=True)
