"""Draw models of each family of encoders: odd shapes, random weights, vocabularies, a task."""

import gzip
import itertools
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import rich.console
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from benchmarks.step.workers import ROOT
from bert_jax.config import ModelConfig
from bert_jax.interop import vocabulary
from bert_jax.interop.families import FAMILIES
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.tensor_names import nest
from bert_jax.model import bert
from bert_jax.tasks.task import CLASSIFY, SPAN, TAG
from bert_jax.tasks.task_layer import TaskLayer
from data_pipeline.vocab import TOKENIZER_JSON, WORD_START, Vocabulary, load_vocabulary
from data_pipeline.vocab.template import SPECIAL_PIECES
from data_pipeline.vocab.train import TRAINED, train_vocabulary

FAMILIES_DRAWN = ("bert", "roberta", "albert", "electra", "distilbert", "xlnet", "modernbert")
FAMILIES_DRAWN += ("xlm-roberta", "deberta-v2")
_TASKS = {CLASSIFY: ("no", "yes", "perhaps"), TAG: ("O", "B"), SPAN: ()}
_ACTS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "silu", "relu", "quick_gelu")
_MAX_TEXTS = 300  # per file
_OF_SHARED = ("robustness/blns.txt", "multilingual/de_gsd-ud-dev.conllu.gz")
_OF_SHARED += ("multilingual/zh_gsdsimp-ud-dev.conllu.gz",)
_SPECIAL_OF_ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]  # sorted by id
_SPECIAL_OF_CAMEMBERT = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<s>", "</s>", "<mask>"]
_SPECIAL_OF_GEMMA = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
_SPELLINGS = {*_SPECIAL_OF_GEMMA, *_SPECIAL_OF_ROBERTA, *itertools.chain(*SPECIAL_PIECES.values())}


def read_texts(data: pathlib.Path, console: rich.console.Console) -> list[str]:
    """Read lines to encode: of the manual's pages, and of the files of others that are there."""
    pages = sorted((ROOT / "docs" / "guide").glob("*.md"))
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").split("\n")]
    texts = [line for line in lines if line.strip()][:_MAX_TEXTS]
    for name in _OF_SHARED:
        path = data / name
        if not path.exists():
            console.print(f"skipped, as it is not there: {path}")
            continue
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            lines = file.read().split("\n")
        lines = [line.removeprefix("# text = ") for line in lines]
        texts += [line for line in lines if line.strip() and "\t" not in line][:_MAX_TEXTS]
    # Text that spells a special token is one to transformers.
    return [text for text in texts if not any(spelling in text for spelling in _SPELLINGS)]


def make_vocabularies(
    family: str, texts: Sequence[str], folder: pathlib.Path
) -> tuple[Vocabulary, ...]:
    """Train a vocabulary of each kind on texts; where padding is id 1, the family's own kind."""
    folder.mkdir(parents=True, exist_ok=True)
    if family == "roberta":
        tokenizer = tokenizers.ByteLevelBPETokenizer()
        tokenizer.train_from_iterator(
            texts, vocab_size=400, special_tokens=_SPECIAL_OF_ROBERTA, show_progress=False
        )
        tokenizer.save_model(str(folder))
        return (vocabulary.read(folder),)
    if family == "xlm-roberta":
        specials = (_SPECIAL_OF_ROBERTA, _SPECIAL_OF_CAMEMBERT)
        return tuple(
            _save(_train_unigram(texts, special), "<s> $A </s>", "<s> $A </s> </s> $B </s>", folder)
            for special in specials
        )
    made = []
    if family == "bert":
        ends = "<CLS|own> $A <SEP|own>"
        made.append(_save(_train_on_words(texts), ends, f"{ends} $B:1 <SEP|own>:1", folder))
    if family == "modernbert":
        gemma, neox = _train_as_gemma(texts), _train_as_neox(texts)
        made.append(_save(gemma, "<bos> $A <eos>", "<bos> $A <eos> $B <eos>", folder))
        made.append(_save(neox, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", folder))
    for kind, trained in TRAINED.items():
        for lowercase in (True, False) if kind == "wordpiece" else (False,):
            words = train_vocabulary(kind, lambda: iter(texts[:_MAX_TEXTS]), 400, lowercase)
            path = folder / f"{kind}-{lowercase}" / trained
            path.parent.mkdir()
            path.write_bytes(words.file_bytes)
            made.append(load_vocabulary(path, lowercase, checks_case=False))
    return tuple(made)


def _train_unigram(texts: Sequence[str], special: Sequence[str]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=[*special], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(texts[:_MAX_TEXTS], trainer)
    return tokenizer


def _train_on_words(texts: Sequence[str]) -> tokenizers.Tokenizer:
    """Train BPE whose pieces end with a mark and hold no spaces, as HerBERT's."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<UNK|own>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [f"<{name}|own>" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(texts[:_MAX_TEXTS], trainer)
    return tokenizer


def _train_as_gemma(texts: Sequence[str]) -> tokenizers.Tokenizer:
    """Train BPE that writes \u2581 for a space and falls back to bytes, as mmBERT's does."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", WORD_START)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(WORD_START, "merged_with_next")
    pieces = [*_SPECIAL_OF_GEMMA, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=700, limit_alphabet=100, special_tokens=pieces, show_progress=False
    )
    tokenizer.train_from_iterator(texts[:_MAX_TEXTS], trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    settings = json.loads(tokenizer.to_str())
    added = settings["added_tokens"]
    settings["added_tokens"] = [t for t in added if t["content"] in _SPECIAL_OF_GEMMA]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(settings))
    tokenizer.add_tokens([tokenizers.AddedToken(2 * WORD_START, normalized=False), "<unused0>"])
    return tokenizer


def _train_as_neox(texts: Sequence[str]) -> tokenizers.Tokenizer:
    """Train byte-level BPE with runs of spaces as added tokens, as ModernBERT's and Ettin's is."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts[:_MAX_TEXTS], trainer)
    tokenizer.add_tokens([tokenizers.AddedToken(" " * run, normalized=True) for run in (4, 3, 2)])
    special = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(token, lstrip=token == "[MASK]") for token in special]
    )
    return tokenizer


def _save(
    tokenizer: tokenizers.Tokenizer, single: str, pair: str, folder: pathlib.Path
) -> Vocabulary:
    """Save a tokenizer with these rows of a text and of a pair; return it as it is read."""
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[
            (token, tokenizer.token_to_id(token)) for token in single.split() if token != "$A"
        ],
    )
    own = folder / f"tokenizer-{len(list(folder.iterdir()))}"
    own.mkdir()
    tokenizer.save(str(own / TOKENIZER_JSON))
    return vocabulary.read(own)


def draw_config(family: str, rng: np.random.Generator, vocab_size: int) -> ModelConfig:
    """Draw the settings of a config.json of a family, and read them."""

    def choose(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    heads = int(rng.integers(1, 5))
    is_even = family in ("modernbert", "xlnet")  # one rotates pairs, one has sines
    width = heads * choose(*((4, 6, 10, 14) if is_even else (3, 5, 7, 8, 9)))
    layers, units = int(rng.integers(1, 5)), int(rng.integers(7, 60))
    spare, epsilon = int(rng.integers(0, 5)), choose(1e-12, 1e-7, 1e-5, 1e-3)
    sizes = {"vocab_size": vocab_size + spare, "max_position_embeddings": choose(41, 53, 67)}
    bert_like = sizes | {
        **{"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads},
        **{"intermediate_size": units, "hidden_act": choose(*_ACTS), "layer_norm_eps": epsilon},
        "type_vocab_size": 1 if "roberta" in family else choose(2, 3),
        "embedding_size": choose(width, 6, 11),
    }
    distilbert = {"dim": width, "n_layers": layers, "n_heads": heads, "hidden_dim": units}
    xlnet = {"vocab_size": vocab_size, "d_model": width, "n_layer": layers, "n_head": heads}
    theta, every = choose(10_000.0, 160_000.0), choose(1, 2, 3)
    settings = {
        "distilbert": sizes | distilbert | {"activation": choose(*_ACTS)},
        "xlnet": {
            **xlnet,
            **{"d_inner": units, "ff_activation": choose(*_ACTS), "layer_norm_eps": epsilon},
        },
        "deberta-v2": bert_like
        | {
            **{"embedding_size": width, "type_vocab_size": choose(0, 0, 2)},
            **{"relative_attention": True, "pos_att_type": choose("p2c|c2p", "c2p", "p2c")},
            **{"position_buckets": choose(-1, 4, 7, 16, 128), "share_att_key": choose(True, False)},
            **{
                "max_relative_positions": choose(-1, 90),
                "norm_rel_ebd": choose("layer_norm", "none"),
            },
            "position_biased_input": choose(True, False),
        },
        "modernbert": {
            **{name: bert_like[name] for name in (*sizes, "hidden_size", "num_hidden_layers")},
            **{"num_attention_heads": heads, "intermediate_size": units, "norm_eps": epsilon},
            **{"hidden_activation": choose(*_ACTS), "classifier_activation": choose(*_ACTS)},
            **{"global_attn_every_n_layers": every, "local_attention": choose(2, 5, 8, 64)},
            **{"global_rope_theta": theta, "local_rope_theta": choose(500.0, 10_000.0)},
            "classifier_pooling": choose("cls", "mean"),
        },
    }
    return FAMILIES[family].parse(pathlib.Path("config.json"), settings.get(family, bert_like))


def draw_models(
    family: str, shapes: int, texts: Sequence[str], folder: pathlib.Path
) -> Iterator[tuple[str, Pretrained]]:
    """Yield models of a family by name: each shape with its own heads, and with a task's layer."""
    vocabularies = make_vocabularies(family, texts, folder / "vocabularies")
    for shape in range(shapes):
        rng = np.random.default_rng((FAMILIES_DRAWN.index(family), shape))
        words = vocabularies[shape % len(vocabularies)]
        config = draw_config(family, rng, words.size)
        is_detector = family == "electra" and shape % 2 == 1
        heads = bert.Heads(mlm=not is_detector, nsp=_has_pairs(family, shape), rtd=is_detector)
        name = f"{family}-{shape}"
        params = draw_params(config, heads, rng)
        if not heads.nsp:
            params.pop("pooler", None)
        yield name, Pretrained(f"google:{name}", config, params, words)
        kind = [*_TASKS][shape % len(_TASKS)]
        layer = TaskLayer("Drawn", kind, _TASKS[kind])
        classes = len(layer.labels) or 2
        params = draw_params(config, bert.Heads(mlm=False, nsp=False, classes=classes), rng)
        if "mlm" in params:  # whose transform the layer reads
            del params["mlm"]["output_bias"]
        yield f"{name}-{kind}", Pretrained(f"google:{name}-{kind}", config, params, words, layer)


def _has_pairs(family: str, shape: int) -> bool:
    return family in ("bert", "albert") and shape % 2 == 0


def draw_params(config: ModelConfig, heads: bert.Heads, rng: np.random.Generator) -> bert.Params:
    """Draw the arrays of a model, leaving none at zeros or ones."""
    model = bert.build(config, "cpu", heads=heads)
    drawn = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.declared):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        mean = 1.0 if name.endswith("scale") else 0.0
        drawn[name] = rng.normal(mean, 0.2, leaf.logical_dims).astype(np.float32)
    return nest(drawn)
