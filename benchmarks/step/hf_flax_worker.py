"""Run the training step of Hugging Face's FlaxBertForPreTraining for step_vs_hf_flax.py.

Runs in an environment with transformers; started by the driver. The step follows
examples/flax/language-modeling/run_mlm_flax.py@v4.57.6 (labels of -100 where nothing is predicted,
every position projected on the vocabulary, optax.adamw without decay of biases and norms), with the
next-sentence loss added, under jax.jit on one device, and the state donated.
"""

import time
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import transformers
from flax.training.common_utils import onehot
from flax.training.train_state import TrainState
from flax.traverse_util import flatten_dict, path_aware_map, unflatten_dict

from benchmarks.step import cases, workers

_running: dict[str, Any] = {}  # model, state, step, batch of the last `build`


def _decayed(params: Any) -> Any:
    return path_aware_map(lambda path, _: path[-1] != "bias" and "LayerNorm" not in path, params)


def _vocabulary_loss(logits: jax.Array, labels: jax.Array, form: str) -> jax.Array:
    """Return the cross entropy at every position; "onehot": the example's, "integer": optax's."""
    if form == "onehot":
        return optax.softmax_cross_entropy(logits, onehot(labels, logits.shape[-1]))
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))


def _losses(
    model: Any, params: Any, batch: dict[str, jax.Array], key: jax.Array | None, form: str
) -> tuple[jax.Array, dict[str, jax.Array]]:
    out = model(
        batch["input_ids"],
        attention_mask=batch["attention_mask"],
        token_type_ids=batch["token_type_ids"],
        params=params,
        dropout_rng=key,
        train=key is not None,
    )
    labels = batch["labels"]
    predicted = jnp.where(labels > 0, 1.0, 0.0)
    mlm = (_vocabulary_loss(out.prediction_logits, labels, form) * predicted).sum()
    nsp = optax.softmax_cross_entropy_with_integer_labels(
        out.seq_relationship_logits, batch["next_sentence_labels"]
    )
    losses = {"mlm": mlm / predicted.sum(), "nsp": nsp.mean()}
    return losses["mlm"] + losses["nsp"], losses


def build(
    size: dict[str, int], dropout_rate: float, batch_file: str, learning_rate: float, form: str
) -> dict[str, Any]:
    """Make model, state and batch, compile the step and take it once."""
    config = transformers.BertConfig(
        **size,
        hidden_act="gelu_new",  # Google BERT's, by tanh; "gelu" would be by erf
        hidden_dropout_prob=dropout_rate,
        attention_probs_dropout_prob=dropout_rate,
    )
    model = transformers.FlaxBertForPreTraining(config, seed=0, dtype=jnp.float32)
    tx = optax.adamw(learning_rate, b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01, mask=_decayed)
    state = TrainState.create(apply_fn=model.__call__, params=model.params, tx=tx)

    def step(state: TrainState, batch: Any, key: jax.Array) -> tuple[TrainState, Any, jax.Array]:
        key, next_key = jax.random.split(key)
        grads, losses = jax.grad(
            lambda params: _losses(model, params, batch, key, form), has_aux=True
        )(state.params)
        return state.apply_gradients(grads=grads), losses, next_key

    _running.update(
        model=model,
        step=jax.jit(step, donate_argnums=(0, 2)),
        state=jax.tree.map(jnp.array, state),
        key=jax.random.PRNGKey(0),
        batch={k: jnp.asarray(v) for k, v in cases.hf_batch(dict(np.load(batch_file))).items()},
        form=form,
    )
    start = time.perf_counter()
    run(1)
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(model.params)),
        "first_step_secs": time.perf_counter() - start,
        "device": jax.devices()[0].device_kind,
        "versions": {
            module.__name__: module.__version__ for module in (transformers, jax, flax, optax)
        },
    }


def run(steps: int) -> dict[str, float]:
    """Take steps; return wall and processor time (all threads) until the last state is ready."""
    start, cpu_start = time.perf_counter(), time.process_time()
    for _ in range(steps):
        _running["state"], losses, _running["key"] = _running["step"](
            _running["state"], _running["batch"], _running["key"]
        )
    jax.block_until_ready((_running["state"], losses))
    secs, cpu_secs = time.perf_counter() - start, time.process_time() - cpu_start
    return {"secs": secs, "cpu_secs": cpu_secs} | {
        name: float(loss) for name, loss in losses.items()
    }


def save_params(file: str) -> dict[str, Any]:
    """Write the current parameters."""
    np.savez(file, **flatten_dict(jax.device_get(_running["state"].params), sep="/"))
    return {}


def gradients(params_file: str, out_file: str) -> dict[str, float]:
    """Write gradients at these parameters without dropout; return the losses."""
    params = unflatten_dict(dict(np.load(params_file)), sep="/")
    grads, losses = jax.jit(
        jax.grad(
            lambda params, batch: _losses(_running["model"], params, batch, None, _running["form"]),
            has_aux=True,
        )
    )(params, _running["batch"])
    np.savez(out_file, **flatten_dict(jax.device_get(grads), sep="/"))
    return {name: float(loss) for name, loss in losses.items()}


if __name__ == "__main__":
    workers.serve({f.__name__: f for f in (build, run, save_params, gradients)})
