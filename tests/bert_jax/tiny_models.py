"""Small configurations and random batches that the tests share. Sizes tell dimensions apart."""

import dataclasses
import pathlib

import jax
import numpy as np

from bert_jax.config import (
    Config,
    MeshConfig,
    ModelConfig,
    OptimConfig,
    Phase,
    ResolvedRun,
    resolve,
    set_fields,
)
from bert_jax.model import bert
from bert_jax.parallel import mesh
from bert_jax.runtime.run_record import Provenance
from bert_jax.train_step import optimizers, schedule, state, step
from bert_jax.trainer.feed import StoreFeed, open_stores, read_facts
from data_pipeline import build
from data_pipeline.spec.schema import row_shape

VOCAB = 211  # odd: vocabulary rows are padded on every mesh

MODEL = ModelConfig(
    vocab_size=VOCAB,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=88,
    max_position_embeddings=24,
)
CONFIG = Config(
    seed=7,
    model=MODEL,
    phases=(Phase(seq_len=19, steps=11, batch_size=16, max_predictions_per_seq=5),),
    optim=OptimConfig(learning_rate=1e-2, warmup_steps=3),
)
# One layer, where more of them do the same.
SMALL = dataclasses.replace(CONFIG, model=dataclasses.replace(MODEL, num_hidden_layers=1))


def random_batch(seed: int = 0, batch_size: int = 16, seq_len: int = 19, predictions: int = 5):
    """Draw a batch with padding, unused prediction slots and both labels; all rows differ."""
    rng = np.random.default_rng(seed)
    lengths_B = rng.integers(seq_len // 2, seq_len + 1, batch_size)
    visible_BS = np.arange(seq_len) < lengths_B[:, None]
    used_BP = np.arange(predictions) < rng.integers(1, predictions + 1, batch_size)[:, None]
    positions_BP = np.sort(rng.integers(1, seq_len // 2, (batch_size, predictions)), axis=1)
    return {
        "input_ids": (rng.integers(1, VOCAB, (batch_size, seq_len)) * visible_BS).astype(np.int32),
        "input_mask": visible_BS.astype(np.int32),
        "segment_ids": ((np.arange(seq_len) > seq_len // 3) & visible_BS).astype(np.int32),
        "masked_lm_positions": (positions_BP * used_BP).astype(np.int32),
        "masked_lm_ids": (rng.integers(1, VOCAB, (batch_size, predictions)) * used_BP).astype(
            np.int32
        ),
        "masked_lm_weights": used_BP.astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, batch_size).astype(np.int32),
        "next_sentence_weights": np.ones(batch_size, np.float32),
    }


@dataclasses.dataclass(frozen=True)
class Setting:
    """Hold a model on a mesh, its optimizer and the shardings of its state."""

    config: Config
    mesh: jax.sharding.Mesh
    model: bert.Model
    tx: object
    where: state.TrainState

    def train_step(self, objective):
        config, phase = self.config, self.config.phases[0]
        take = step.make_train_step(self.model, objective, self.tx, config, phase, self.where)
        pace_of = schedule.make_pace_of(config)
        return lambda state, batch: take(state, batch, pace_of(int(state.step)))

    def init_state(self, seed=0):
        return state.init_state(self.model, self.tx, self.where, seed)


def setting(
    config: Config,
    devices: int,
    preset: str = "dp",
    model_size: int = 2,
    heads: bert.Heads = bert.PRETRAINING,
) -> Setting:
    """Build the model of a config on the first `devices` devices and set its mesh."""
    arranged = MeshConfig(preset=preset, model_size=model_size)
    of = mesh.make_mesh(arranged, jax.devices()[:devices])
    jax.set_mesh(of)
    model = bert.build(config.model, "cpu", of.shape["model"], config.compute, heads)
    tx = optimizers.make_optimizer(config.optim)
    where = state.make_shardings(model, tx, of, arranged)
    return Setting(config, of, model, tx, where)


def abstract_batch(config: Config, phase: Phase, devices: jax.sharding.Mesh):
    """Return the shapes and dtypes of a phase's global batch, to lower a step with."""
    shape = row_shape(config.data, phase.seq_len, phase.max_predictions_per_seq)
    return mesh.abstract_batch(shape.arrays(phase.batch_size), devices)


def resolved(config: Config) -> ResolvedRun:
    """Resolve a config with its store; the default warm-up is longer than a test's run."""
    if isinstance(config, ResolvedRun):
        return config
    if config.optim == OptimConfig():
        config = dataclasses.replace(config, optim=OptimConfig(warmup_steps=1))
    return resolve(config, store=read_facts(config.data))


def open_feed(config: Config) -> StoreFeed:
    """Open the rows of a config's store."""
    return StoreFeed(open_stores(config.data), resolved(config))


def config_and_data(config: Config) -> tuple[Config, Provenance]:
    """Return the resolved config of a run on its store, and its data as a record names them."""
    feed = open_feed(config)
    return feed.config, feed.provenance


def with_setting(config, path: str, value: object):
    """Change the setting of a config at a path, such as phases[0].steps, to a value of any type."""
    return set_fields(config, {path: value})


def build_store(text: pathlib.Path, folder: pathlib.Path, *flags: str) -> pathlib.Path:
    """Build a store from a text file; flags choose its vocabulary and its parts."""
    assert build.main([f"--input={text}", f"--output={folder}", "--workers=1", *flags]) == 0
    return folder
