"""Read and write a BERT in the format of Google's TF1 code: checkpoint and bert_config.json.

Google's code takes lowercasing as a flag; tokenizer_config.json records it for other readers.

Source: modeling.py, run_pretraining.py@eedf5716ce.
"""

import contextlib
import pathlib
from collections.abc import Iterator

import numpy as np

from bert_jax.config import ModelConfig
from bert_jax.config.model_rules import check_sizes
from bert_jax.interop import model_json, vocabulary
from bert_jax.interop.families import bert
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.tensor_names import TensorName, Tensors, read_params, rename
from bert_jax.model.bert import Params
from bert_jax.tasks.task import CLASSIFY
from data_pipeline.io import Refused, small_files
from data_pipeline.io.atomic import write_json
from data_pipeline.io.errors import get_first_line
from data_pipeline.vocab import LIST, TOKENIZER_JSON, WORDPIECE, Vocabulary
from data_pipeline.vocab.tokenizer_file import open_tokenizer
from data_pipeline.vocab.wordpiece import join_pieces, make_wordpiece_tokenizer

CONFIG = "bert_config.json"
# Google's code calls the tanh approximation gelu.
_SETTINGS = model_json.Settings(
    {"hidden_act": ("hidden_act", {"gelu": "gelu_tanh", "relu": "relu"})},
    # The defaults of BertConfig in modeling.py, which requires vocab_size.
    defaults={**bert.DEFAULTS, "vocab_size": None, "type_vocab_size": 16},
)
_COUNTERS = ("global_step", "beta1_power", "beta2_power")  # state of an optimizer
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"  # the mark of TF2 Keras's checkpoints


def name_tensor(path: str) -> TensorName:
    """Return the name that Google's code gives the array at our path; none for parts it lacks."""
    names = bert.NAMES.name_tensor(path, "bert.").names
    if not names:
        return TensorName(())
    module, leaf = path.rsplit("/", 1)
    theirs = names[0].rpartition(".")[0].replace(".", "/")
    theirs = theirs.replace("encoder/layer/", "encoder/layer_")
    if leaf == "embedding":
        return TensorName((theirs,))
    if module == "nsp":
        leaf = {"kernel": "output_weights", "bias": "output_bias"}[leaf]
    if module.endswith("layer_norm"):
        leaf = {"scale": "gamma", "bias": "beta"}[leaf]
    return TensorName((f"{theirs}/{leaf}",), is_transposed=path == "nsp/kernel")


def find_prefix(address: str) -> pathlib.Path:
    """Return the prefix of a checkpoint's files, given the prefix, one of the files or the folder.

    Raises:
      Refused: there is none, or several in the folder.
    """
    path = pathlib.Path(address)
    if path.is_dir():
        indices = sorted(path.glob("*.index"))
        if len(indices) == 1:
            return indices[0].with_suffix("")
        names = ", ".join(index.stem for index in indices) or "none"
        raise Refused(
            f"{path} must hold one checkpoint of TensorFlow (*.index), and holds {names}; give the "
            "prefix of one, as DIR/bert_model.ckpt"
        )
    for suffix in (".index", ".meta", ".data-00000-of-00001"):
        path = pathlib.Path(str(path).removesuffix(suffix))
    if not pathlib.Path(f"{path}.index").is_file():
        raise Refused(
            f"{path}.index does not exist; give the prefix of a checkpoint of TensorFlow, as "
            "DIR/bert_model.ckpt"
        )
    return path


def read(prefix: pathlib.Path) -> tuple[ModelConfig, Params, tuple[str, ...]]:
    """Read the sizes and the arrays of a BERT: encoder, and pooler and heads if it has them.

    The third value has the names of all other arrays, such as a task layer's.

    Raises:
      Refused: a file is missing or damaged, or not of a BERT.
    """
    path = prefix.parent / CONFIG
    if not path.is_file():
        raise Refused(
            f"{prefix.parent} has no {CONFIG}; put the one that it was trained with next to "
            f"{prefix.name}"
        )
    config = _SETTINGS.parse(path, model_json.read_json(path))
    check_sizes(config, path)
    tensors = _open_tensors(prefix)
    if _OBJECTS in tensors.dims:
        raise Refused(
            f"{prefix} is a checkpoint of TF2 objects, whose names depend on the program; only "
            "names of Google's TF1 code are read: export it from the program that wrote it"
        )
    return config, *read_params(tensors, name_tensor, config, ignored=_COUNTERS, stems=("bert/",))


def _open_tensors(prefix: pathlib.Path) -> Tensors:
    import tensorflow as tf

    for path in prefix.parent.glob(f"{prefix.name}.*"):
        small_files.open_regular(path).close()  # TensorFlow would wait for a pipe
    with _explain_damage(f"{prefix} is damaged or incomplete"):
        reader = tf.train.load_checkpoint(str(prefix))

    def read_tensor(name: str) -> np.ndarray:
        with _explain_damage(f"{prefix}: {name} is damaged"):
            array: np.ndarray = reader.get_tensor(name)
        return array

    dims = {name: tuple(sizes) for name, sizes in reader.get_variable_to_shape_map().items()}
    return Tensors(str(prefix), dims, read_tensor)


@contextlib.contextmanager
def _explain_damage(words: str) -> Iterator[None]:
    """Turn any error of TensorFlow's reader, whose class depends on the damage, into Refused."""
    try:
        yield
    except Exception as error:
        reason = get_first_line(error)[:120]
        raise Refused(f"{words} ({reason}); copy or download its files again") from error


_EPSILON = 1e-12  # every layer norm's in Google's code


def check_supported(config: ModelConfig, address: str) -> None:
    """Raise if Google's code would compute something else from these weights."""
    is_bert = bert.FAMILY.fits(config) and bert.FAMILY.reads_alike(config, CLASSIFY)
    if config.is_causal or not is_bert:
        raise Refused(
            f"{address} has another encoder than BERT's, and Google's code computes no other; "
            "export to hf:DIR"
        )
    if config.hidden_act not in _SETTINGS.choices["hidden_act"][1].values():
        raise Refused(
            f'{address} has hidden_act {config.hidden_act}, and Google\'s "gelu" is the tanh '
            "approximation; export to hf:DIR, or say with --hidden_act=gelu_tanh that the "
            "approximation is meant"
        )
    if config.mlm_act != config.hidden_act:
        raise Refused(
            f"{address} has config.model.head_act = {config.head_act}, and Google's code computes "
            f"hidden_act = {config.hidden_act} in the head too; export to hf:DIR or orbax:DIR"
        )
    if config.layer_norm_eps != _EPSILON:
        raise Refused(
            f"{address} has layer_norm_eps {config.layer_norm_eps:g}, and Google's code takes none "
            f"but {_EPSILON:g}; export to hf:DIR"
        )


# Case, accents, Chinese characters, punctuation, tabs.
_CHECKED_TEXT = "Na\u00efve caf\u00e9s,\tO'Neill's \u4f60\u597d 3.5-\u00bd\uff01"


def cuts_alike(words: Vocabulary) -> bool:
    """Return whether Google's code, given WordPiece's pieces as a list, finds the same words.

    Added tokens and longest words aside.
    """
    if words.file_name != TOKENIZER_JSON:
        return True
    pieces = words.pieces()
    own = open_tokenizer(words.path, words.file_bytes)
    theirs = make_wordpiece_tokenizer(pieces, pieces[words.special_ids["unk"]], words.lowercase)
    text = words.normalize(_CHECKED_TEXT)
    split = theirs.pre_tokenizer.pre_tokenize_str
    expected = split(theirs.normalizer.normalize_str(_CHECKED_TEXT))
    actual = own.pre_tokenizer.pre_tokenize_str(text) if own.pre_tokenizer else [(text, ())]
    return [word for word, _ in actual] == [word for word, _ in expected]


def write(checkpoint: Pretrained, prefix: pathlib.Path) -> None:
    """Write a checkpoint under a prefix, and its JSON and vocabulary next to it."""
    import tensorflow as tf

    arrays = rename(checkpoint.params, name_tensor)
    names = sorted(arrays)
    try:
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.constant(arrays[name]) for name in names],
        )
    except tf.errors.OpError as error:
        raise OSError(f"{prefix} cannot be written: {get_first_line(error)}") from error
    words = checkpoint.vocabulary
    (prefix.parent / words.file_name).write_bytes(words.file_bytes)
    if words.kind == WORDPIECE:
        # Google's code reads it, and strips its lines; an added token may be a line break.
        lines = [piece.replace("\n", " ") for piece in words.pieces()]
        (prefix.parent / LIST).write_bytes(join_pieces(lines))
        case = {"do_lower_case": words.lowercase}
        write_json(prefix.with_name(vocabulary.TOKENIZER_CONFIG), case)
    settings = _SETTINGS.describe(checkpoint.config)
    del settings["layer_norm_eps"]
    write_json(prefix.with_name(CONFIG), dict(sorted(settings.items())))
