"""Google's layout of a BERT: names in its TF1 checkpoints, bert_config.json beside them.

Source: modeling.py, run_pretraining.py@eedf5716ce.
"""

import pathlib

import numpy as np

from bert_jax import bert_config
from bert_jax.config import ModelConfig
from bert_jax.models.bert import Params
from bert_jax.named_tensors import (
    Named,
    Tensors,
    check_layers,
    dims_of,
    params_of,
    refuse_more_encoder,
    their_module,
    unread_names,
)
from data_pipeline import small_files

CONFIG = "bert_config.json"
ACTS = {"gelu": "gelu_tanh"}  # its code computes the tanh approximation under that name
_COUNTERS = ("global_step", "beta1_power", "beta2_power")  # of an optimiser
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"  # in checkpoints of TF2's Keras


def named(path: str) -> Named:
    """What Google's code calls the array at a path of ours."""
    if path == "mlm/output_bias":
        return Named(("cls/predictions/output_bias",))
    if path.startswith("nsp/"):
        is_kernel = path == "nsp/kernel"
        leaf = "output_weights" if is_kernel else "output_bias"
        return Named((f"cls/seq_relationship/{leaf}",), is_transposed=is_kernel)
    our_module, leaf = path.rsplit("/", 1)
    module = their_module(our_module).replace("encoder.layer.", "encoder/layer_").replace(".", "/")
    if not module.startswith("cls/"):
        module = f"bert/{module}"
    if leaf == "embedding":
        return Named((module,))
    if our_module.endswith("layer_norm"):
        leaf = {"scale": "gamma", "bias": "beta"}[leaf]
    return Named((f"{module}/{leaf}",))


def prefix_of(address: str) -> pathlib.Path:
    """The prefix of a checkpoint's files, of a prefix, one of its files or the folder of one.

    Raises:
      ValueError: there is none, or several in the folder.
    """
    path = pathlib.Path(address)
    if path.is_dir():
        found = sorted(path.glob("*.index"))
        if len(found) > 1:
            names = ", ".join(one.stem for one in found)
            raise ValueError(f"{path} holds several checkpoints: {names}; name one of them")
        if not found:
            raise ValueError(
                f"{path} holds no checkpoint of TensorFlow (*.index); give the prefix of one, as "
                "DIR/bert_model.ckpt"
            )
        return found[0].with_suffix("")
    for suffix in (".index", ".meta", ".data-00000-of-00001"):
        path = pathlib.Path(str(path).removesuffix(suffix))
    if not pathlib.Path(f"{path}.index").is_file():
        raise ValueError(
            f"{path}.index does not exist; give the prefix of a checkpoint of TensorFlow, as "
            "DIR/bert_model.ckpt"
        )
    return path


def read(prefix: pathlib.Path) -> tuple[ModelConfig, Params, tuple[str, ...]]:
    """The sizes and the arrays of a BERT: encoder, pooler and heads, where the checkpoint has them.

    And the names of the arrays that are nothing of these, as of the layer of a task.

    Raises:
      ValueError: a file is missing or damaged, or not that of a BERT.
      OSError: a file cannot be read.
    """
    path = prefix.parent / CONFIG
    if not path.is_file():
        raise ValueError(
            f"{prefix.parent} has no {CONFIG}; put the one beside {prefix.name} that it was "
            "trained with"
        )
    config = bert_config.model_config(path, bert_config.read_json(path), ACTS)
    tensors = _tensors(prefix)
    if _OBJECTS in tensors.dims:
        raise ValueError(
            f"{prefix} is a checkpoint of TF2 objects, whose names depend on the program; only "
            "those of Google's TF1 code are read: export it from the program that wrote it"
        )
    check_layers(tensors.dims, config, tensors.place)
    names = {path: named(path) for path in dims_of(config)}
    unread = unread_names(tensors, names, _COUNTERS)
    stems = ("bert/embeddings/", "bert/encoder/")
    refuse_more_encoder(tensors.place, unread, stems, CONFIG)
    return config, params_of(tensors, names, config), unread


def _tensors(prefix: pathlib.Path) -> Tensors:
    import tensorflow as tf

    for path in prefix.parent.glob(f"{prefix.name}.*"):
        small_files.open_regular(path).close()  # TensorFlow would wait for a pipe
    # What is wrong with a file comes as IndexError, ValueError or tf.errors.OpError, by its kind.
    try:
        reader = tf.train.load_checkpoint(str(prefix))
    except Exception as error:
        raise ValueError(
            f"{prefix} is damaged or not whole ({_first_line(error)}); copy or download its files "
            "again"
        ) from error

    def read_one(name: str) -> np.ndarray:
        try:
            array: np.ndarray = reader.get_tensor(name)
        except Exception as error:
            raise ValueError(
                f"{prefix}: {name} is damaged ({_first_line(error)}); copy or download its files "
                "again"
            ) from error
        return array

    dims = {name: tuple(of) for name, of in reader.get_variable_to_shape_map().items()}
    return Tensors(str(prefix), dims, read_one)


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:120]
