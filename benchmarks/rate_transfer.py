"""Train BERTs of several widths at several learning rates, with and without transfer=mup.

    make quickstart
    python -m benchmarks.rate_transfer --store=runs/quickstart/store --output=DIR

Prints the held-out loss of masked words of each run, by width and rate; with transfer the best rate
should be the same at every width. A finished run is not trained again, a stopped one resumes; DIR
takes more widths and rates, but no other store, steps or first width.
"""

import argparse
import dataclasses
import json
import pathlib

import jax
import rich.console
import rich.table

from benchmarks.families import claim
from benchmarks.results import HELP, Measured, open_row, write_row
from bert_jax.config import CheckpointConfig, Config, EvalConfig, OptimConfig, Phase
from bert_jax.trainer import loop
from bert_jax.trainer.setup import build_setup
from configs.quickstart import BERT
from data_pipeline.spec.options import PretrainOptions

HEAD_WIDTH = 32


def make_config(
    store: str, width: int, rate: float, transfer: str, base: int, steps: int
) -> Config:
    """Make the config of a run: the quickstart's first phase, shorter, at another width."""
    heads = width // HEAD_WIDTH
    return Config(
        seed=0,
        objective="mlm",
        model=dataclasses.replace(
            BERT, hidden_size=width, intermediate_size=4 * width, num_attention_heads=heads
        ),
        phases=(Phase(seq_len=32, steps=steps, batch_size=48),),
        optim=OptimConfig(
            name="adamw",
            learning_rate=rate,
            warmup_steps=steps // 10,
            beta2=0.98,
            transfer=transfer,
            transfer_base_width=base if transfer == "mup" else 0,
        ),
        data=PretrainOptions(store=store),
        eval=EvalConfig(every_steps=steps, examples=2048),
        checkpoint=CheckpointConfig(every_steps=steps),
        log_every_steps=steps // 4,
    )


def train(config: Config, workdir: pathlib.Path) -> float:
    """Train to the end, unless the run is finished; return its held-out loss of masked words."""
    summary = workdir / "summary.json"
    if not summary.exists():
        loop.train(build_setup(config, workdir, jax.devices()[:1]))
    return float(json.loads(summary.read_text())["heldout_mlm_loss"])


def main() -> None:
    """Train each width at each rate, and print a table."""
    parser = argparse.ArgumentParser(description="Compare rates over widths.")
    parser.add_argument("--store", required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 256, 512])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3, 8e-3, 16e-3])
    parser.add_argument("--transfers", nargs="+", default=["mup", "none"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--record", default="", metavar="ROW", help=HELP)
    arguments = parser.parse_args()
    row, figures = open_row(arguments.record), []
    table = rich.table.Table("transfer", "width", *(f"{rate:g}" for rate in arguments.rates))
    base = arguments.widths[0]
    claim(arguments.output, store=arguments.store, steps=arguments.steps, first_width=base)
    for transfer in arguments.transfers:
        for width in arguments.widths:
            losses = []
            for rate in arguments.rates:
                fixed = transfer if width != base else "none"  # equal at the base width
                config = make_config(arguments.store, width, rate, fixed, base, arguments.steps)
                losses.append(train(config, arguments.output / f"{fixed}-{width}-{rate:g}"))
            best = min(losses)
            cells = [f"[bold]{loss:.3f}[/]" if loss == best else f"{loss:.3f}" for loss in losses]
            table.add_row(transfer, str(width), *cells)
            found = ", ".join(f"{loss:.3f}" for loss in losses)
            figures.append(f"{width} with transfer={transfer}: {found}")
    rich.console.Console(width=110).print(table)
    rates = ", ".join(f"{rate:g}" for rate in arguments.rates)
    what = f"held-out MLM loss after {arguments.steps} steps of 48 x 32 at rates {rates}, by width"
    write_row(row, Measured(what=what, figure="; ".join(figures), runs="1"))


if __name__ == "__main__":
    main()
