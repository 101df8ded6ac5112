"""Read the models of tests/golden, and write them as folders of transformers."""

import json
import pathlib

import jax
import numpy as np
from safetensors.numpy import save_file

from bert_jax.config import MeshConfig
from bert_jax.interop import huggingface
from bert_jax.interop.tensor_names import Tensors, read_params, rename
from bert_jax.parallel import mesh
from tests.golden import encoders


def read_golden(script, prefix=""):
    """Read the arrays that a script of tests/golden wrote, by their names after a prefix."""
    with np.load(pathlib.Path(script.__file__).with_suffix(".npz")) as file:
        names = [name for name in file.files if name.startswith(prefix)]
        return {name.removeprefix(prefix): file[name] for name in names}


def write_folder(folder, golden, kind, **changes):
    """Write the weights and the config of a class as save_pretrained does; return the arrays."""
    shapes = json.loads(str(golden[f"{kind}/shapes"]))
    arrays = {name: encoders.weights(name, tuple(dims)) for name, dims in shapes.items()}
    save_file(arrays, folder / huggingface.WEIGHTS, metadata={"format": "pt"})
    settings = json.loads(str(golden[f"{kind}/config"])) | changes
    (folder / huggingface.CONFIG).write_text(json.dumps(settings))
    return arrays


def make_mesh():
    """Make a mesh of one device."""
    return mesh.make_mesh(MeshConfig(preset="dp"), jax.local_devices()[:1])


def read_arrays(family, config, dims, read_tensor):
    """Return our parameters from arrays with transformers' names; assert that all are read."""
    params, unread = read_params(
        Tensors("golden", dims, read_tensor),
        lambda path: family.names.name_tensor(path, family.prefix),
        config,
        ignored=(),
        stems=(family.prefix,),
    )
    assert unread == ()
    return params


def _name_written(name):
    """Return the exported name of a DeBERTa array, whose head has two names in transformers."""
    bias, head = "lm_predictions.lm_head.bias", "lm_predictions.lm_head."
    name = name.replace(bias, "cls.predictions.bias")
    return name.replace(head, "cls.predictions.transform.")


def assert_comes_back(family, config, arrays):
    """Check that a config and its arrays are written as they were read."""
    assert family.fits(config)
    assert family.parse(pathlib.Path("config.json"), family.describe(config)) == config
    dims = {name: array.shape for name, array in arrays.items()}
    params = read_arrays(family, config, dims, arrays.__getitem__)
    again = rename(params, lambda path: family.names.name_tensor(path, family.prefix))
    arrays = {_name_written(name): array for name, array in arrays.items()}
    assert sorted(again) == sorted(arrays)
    for name, array in again.items():
        np.testing.assert_array_equal(array, arrays[name])
