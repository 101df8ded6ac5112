"""Compile small steps for slices of v5e, and print their collectives as JSON.

    python -m tests.bert_jax.compile_collectives

One process compiles all, as libtpu takes seconds to load. The environment that it needs is in
tests/bert_jax/train_step/test_compiled_collectives.py.
"""

import dataclasses
import json
import math
import re
import sys

import jax

from bert_jax.config import ComputeConfig, Config, MeshConfig, ModelConfig, Phase
from bert_jax.model import bert
from bert_jax.parallel import mesh
from bert_jax.planning import aot_compile, hlo, slices
from bert_jax.planning.hlo_cost import KINDS
from bert_jax.train_step import optimizers, state

# Wide enough that matrices are cut on every mesh; one layer, as the next ones do the same.
MODEL = ModelConfig(
    vocab_size=1000,
    hidden_size=256,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=128,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
# Matrices of a megabyte and more, as in BERT-Base: the compiler does not join them.
LARGER = dataclasses.replace(MODEL, hidden_size=1024, intermediate_size=2048)
SEQ_LEN = 128
ROWS = 4  # per micro-batch and per device of the batch axes
STEPS = {  # topology, mesh, micro-batches, model
    "zero1": ("v5e:4x4", MeshConfig(preset="zero1"), 1, MODEL),
    "chips64": ("v5e:8x8", MeshConfig(preset="zero1"), 1, LARGER),
    "slices": ("v5e:4x4", MeshConfig(preset="zero1", num_slices=2), 1, MODEL),
    "dp": ("v5e:4x4", MeshConfig(preset="dp"), 2, MODEL),
    "tp": ("v5e:4x4", MeshConfig(preset="tp", gradient_dtype="float32"), 1, MODEL),
}


def configured(of: MeshConfig, micro_batches: int, model: ModelConfig, devices: int) -> Config:
    rows = ROWS * mesh.batch_unit(of, devices, micro_batches)
    phase = Phase(SEQ_LEN, 10, rows, max_predictions_per_seq=20, micro_batches=micro_batches)
    compute = ComputeConfig(attention="plain")
    return Config(model=model, phases=(phase,), mesh=of, compute=compute)


def parameters(config: Config, devices) -> list[dict]:
    """List parameters by size and by the parts that the batch axes and the model axis cut."""
    of = mesh.make_mesh(config.mesh, devices)
    with jax.set_mesh(of):
        model = bert.build(config.model, "tpu", of.shape["model"], config.compute)
        tx = optimizers.make_optimizer(config.optim)
        where = state.make_shardings(model, tx, of, config.mesh)
        params = state.make_abstract_state(model, tx, where).params
    found = []
    for path, leaf in jax.tree.leaves_with_path(params):
        cut = {axis: of.shape[axis] for axis in leaf.sharding.spec if axis}
        along_model = cut.pop("model", 1)
        found.append(
            {
                "name": jax.tree_util.keystr(path),
                "size": leaf.size,
                "is_matrix": leaf.ndim > 1,
                "batch_parts": math.prod(cut.values()),
                "model_parts": along_model,
            }
        )
    return found


def arrays(result: str) -> list[tuple[str, int]]:
    """List dtype and size of each array in an HLO type."""
    found = re.findall(r"\b([a-z]+\d+)\[([\d,]*)\]", result)
    return [(kind, math.prod(int(n) for n in dims.split(",") if n)) for kind, dims in found]


def in_loops(program: hlo.HloProgram) -> set[str]:
    """Return the names of computations that run in a loop, directly or through a call."""
    called = {
        name: {
            each
            for one in body
            for each in re.findall(r"(?:calls|to_apply|body)=%([\w.\-]+)", one.rest)
        }
        for name, body in program.computations.items()
    }
    bodies = program.computations.values()
    left = [one.attribute("body") for body in bodies for one in body if one.opcode == "while"]
    found: set[str] = set()
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += called[name]
    return found


def exchanged(text: str, devices: int) -> list[dict]:
    """List each collective of a program once, even if the compiler split it into pieces."""
    program = hlo.parse(text)
    loops = in_loops(program)
    bodies = program.computations.values()
    begun = {
        one.attribute("calls") for body in bodies for one in body if one.opcode == "async-start"
    } | {
        name
        for name, body in program.computations.items()
        if any(one.attribute("custom_call_target") == "AsyncCollectiveStart" for one in body)
    }
    found: dict[str, dict] = {}
    for name, body in program.computations.items():
        for one in body:
            kind = one.opcode.removesuffix("-start")
            between = one.attribute("_xla_megascale_transfer_type")
            if one.opcode == "send" and between:  # to another slice
                kind, is_begun, members = f"network {between.lower()}", False, 2
                result = hlo.split_tuple(one.result)[0]
            elif kind in KINDS:
                is_begun = one.opcode.endswith("-start") and kind != "all-reduce"
                result = hlo.split_tuple(one.result)[1] if is_begun else one.result
                members = len(hlo.read_first_group(one.rest, devices))
            else:
                continue
            chain = one.attribute("chain_id")  # pieces of one collective share it
            key = f"chain {chain}" if chain else one.name
            is_begun_before = key in found and found[key]["is_asynchronous"]
            found[key] = {
                "kind": kind,
                "arrays": arrays(result),
                "devices": members,
                "is_asynchronous": is_begun_before
                or one.opcode.endswith("-start")
                or name in begun,
                "in_a_loop": name in loops,
            }
    return list(found.values())


def main() -> None:
    for name, (topology, of, micro_batches, model) in STEPS.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        slice_ = slices.find_slice(topology, of.num_slices)
        devices = slices.open_devices(slice_)
        config = configured(of, micro_batches, model, len(devices))
        compiled = aot_compile.compile_step(config, 0, slice_, devices)
        facts = {
            "name": name,
            "parameters": parameters(config, devices),
            "exchanged": exchanged(compiled.text, len(devices)),
        }
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
