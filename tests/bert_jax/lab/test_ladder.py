"""A ladder: its rungs are one recipe at several widths, and the command fits what they reached."""

import dataclasses
import io
import json
import shlex

import pytest
import rich.console

from bert_jax.config import Config, overrides
from bert_jax.lab import ladder as ladder_lib
from bert_jax.lab import ladder_report
from bert_jax.lab.kinds import load_row
from bert_jax.lab.ladder import Forecast, RungResult
from bert_jax.lab.study import Study
from bert_jax.logging import console as screen_lib
from bert_jax.logging.metrics_writer import SUMMARY
from bert_jax.planning.law import LADDER, Point, count_layer_parameters, read_ladder
from bert_jax.runtime.cli import GivenConfig, find_config
from data_pipeline.store import open_store

WIDTHS, TOKENS = [64, 128, 256], [4_000_000, 16_000_000]


def make_rungs(place, *flags, widths=WIDTHS, tokens=TOKENS, rate=2e-3):
    given, _ = overrides.take(flags, Config)
    config = GivenConfig(Config, place, tuple(given))
    recipe = ladder_lib.make_recipe(config, widths, tokens, rate)
    return [ladder_lib.make_rung(recipe, width, count) for width in widths for count in tokens]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "seq_len", "most_rows", "initial"),
    [
        ("configs/quickstart.py", 32, 96, 0.09 * 2**0.5),
        ("configs/quickstart.py:model=roberta", 32, 96, 0.09 * 2**0.5),
        ("configs/base.py", 128, 256, 0.02 * 12**0.5),
    ],
)
def test_rungs_are_one_recipe_at_several_widths(
    tiny_store, tmp_path, place, seq_len, most_rows, initial
):
    rungs = make_rungs(place)
    study = Study(ladder_lib.make_study(rungs, str(tiny_store)), tmp_path)  # validates each
    base = overrides.load(Config, place, find_config, [])
    for rung, cost in zip(rungs, study.costs, strict=True):
        config = load_row(rung.row, str(tiny_store))
        (phase,), model, optim = config.phases, config.model, config.optim
        assert phase.seq_len == seq_len and phase.batch_size <= most_rows
        assert phase.steps >= 500
        assert cost.tokens == pytest.approx(phase.steps * phase.batch_size * seq_len)
        assert model.num_hidden_layers == max(2, rung.width // 64) == rung.layers
        assert model.hidden_size == rung.width == 32 * model.num_attention_heads
        assert model.intermediate_size == 4 * rung.width
        assert rung.parameters == count_layer_parameters(model)
        assert model.initializer_range == pytest.approx(initial, rel=1e-3)
        assert (optim.transfer, optim.transfer_base_width) == ("mup", 64)
        assert optim.learning_rate == 2e-3
        assert optim.warmup_steps == phase.steps // 10
        assert config.eval.every_steps == phase.steps  # once, at the end of its own schedule
        assert config.objective == base.objective and config.data == type(config.data)(
            **{**vars(base.data), "store": str(tiny_store)}
        )
    assert len({load_row(rung.row, "x").phases[0].batch_size for rung in rungs}) == 1
    assert [round(cost.tokens / 4e6) for cost in study.costs] == [1, 4] * 3


def test_what_the_user_sets_is_kept_and_later_phases_are_not_there():
    rungs = make_rungs(
        "configs/quickstart.py",
        *("--config.objective=mlm", "--config.data.masked_lm_prob=0.3"),
        *("--config.phases[0].batch_size=24", "--config.phases[1].steps=7"),
        *("--config.data.store=STORE", "--config.optim.beta2=0.9"),
    )
    config = load_row(rungs[0].row, "STORE")
    assert (config.objective, config.data.masked_lm_prob) == ("mlm", 0.3)
    assert config.phases[0].batch_size == 24 and config.optim.beta2 == 0.9
    assert config.data.store == "STORE"
    words = ladder_lib.write_command(rungs[-1], "STORE").split()
    assert "--config=configs/first_phase.py:configs/quickstart.py" in words
    assert {"--config.objective=mlm", "--config.model.hidden_size=256"} <= set(words)


@pytest.mark.parametrize(
    ("flags", "widths", "words"),
    [
        (["--config.init=hf:DIR"], WIDTHS, "config.init is hf:DIR"),
        ([], [64], "--widths=64 and --tokens=4000000,16000000: no law fits a single width"),
        ([], [64, 100], "has 100, not a multiple of the head width 32"),
        (["--config.model.hidden_size=9"], WIDTHS, "hidden_size=9: a ladder decides it"),
        (["--config.phases[0].steps=9"], WIDTHS, r"steps=9: a ladder decides it"),
    ],
)
def test_a_ladder_of_something_else_is_refused(flags, widths, words):
    with pytest.raises(ValueError, match=words):
        make_rungs("configs/quickstart.py", *flags, widths=widths)


def test_the_narrowest_width_has_a_head():
    rungs = make_rungs("configs/quickstart.py:model=bert", widths=[1, 64])
    assert [load_row(rung.row, "STORE").model.num_attention_heads for rung in rungs] == [
        1,
        1,
        64,
        64,
    ]


def test_a_model_that_would_overfit_is_not_predicted():
    rungs = make_rungs("configs/quickstart.py")
    largest = max(rung.parameters for rung in rungs)
    ladder_lib.refuse_overfitting(rungs, rungs, largest // 20)  # rungs are trained, not predicted
    wider = make_rungs("configs/quickstart.py", widths=[256, 512])[-1:]
    ladder_lib.refuse_overfitting(rungs, wider, wider[0].parameters // 9)
    with pytest.raises(ValueError, match="--predict asks for a width of 512"):
        ladder_lib.refuse_overfitting(rungs, wider, wider[0].parameters // 11)


def test_counts_are_read_with_their_letters():
    assert ladder_lib.parse_counts("16M, 4m,0.5k", "tokens") == [500, 4_000_000, 16_000_000]
    assert ladder_lib.parse_counts("16.1k,4.001m", "tokens") == [16_100, 4_001_000]
    for text in ("", "4,", "x", "-1", "1e6", "0", "0.5", "1" * 40, "7,7", "4M,4000k"):
        with pytest.raises(ValueError, match="--tokens is"):
            ladder_lib.parse_counts(text, "tokens")


def test_a_larger_store_has_more_tokens_within_limits():
    assert ladder_lib.choose_tokens(450_000) == [8_000_000, 16_000_000, 32_000_000]
    assert ladder_lib.choose_tokens(40_000_000) == [10_000_000, 20_000_000, 40_000_000]
    assert ladder_lib.choose_tokens(10**10)[-1] == 128_000_000


def make_outcome(width, tokens, loss, is_used=True):
    parameters = 2 * 12 * width**2
    return RungResult(
        *(f"w{width}-{tokens}", width, 2, parameters, tokens, 1e6, 6.0 * parameters * tokens),
        *(loss, 6.4, 4.4, int(tokens), is_used),
    )


def known_loss(width, tokens):
    return 1.2 + 120 / (2 * 12 * width**2) ** 0.35 + 250 / tokens**0.33


def test_a_run_on_the_plateau_is_left_out_and_the_picture_has_every_rung(tiny_store):
    outcomes = [make_outcome(w, t, known_loss(w, t)) for w in (64, 128) for t in (4e6, 8e6, 16e6)]
    outcomes.append(make_outcome(64, 1e6, 6.2, is_used=False))
    store = open_store(tiny_store)
    fitted = ladder_lib.fit_ladder(outcomes, [], store)
    assert fitted.error == "" and len(fitted.law.points) == 6
    far_off = [make_outcome(64, 8e6, known_loss(64, 8e6) * 1.2), *outcomes[1:]]
    assert "the points do not fit a law" in ladder_lib.fit_ladder(far_off, [], store).error
    far = Forecast("w256-16M", 256, 3_145_728, 16e6, 3e14, 2.5, 2.4, 2.7, "python")
    ladder = dataclasses.replace(fitted, forecasts=[far])
    words = (
        "w64-1000000.0 is left out: its loss 6.200 has come 10% of the way from the unigram loss"
    )
    assert ladder.notes()[0].startswith(words)
    figure = ladder_report.draw_figure(ladder)
    (axes,) = figure.axes
    dots = sum(len(collection.get_offsets()) for collection in axes.collections)
    assert dots >= len(outcomes)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["64", "128", "256"]
    table = ladder_report.build_table(ladder)
    assert table.row_count == 7 and str([*table.columns[-1].cells][-1]) == "-"


def test_the_command_of_a_forecast_can_be_pasted_from_80_columns(monkeypatch):
    out = io.StringIO()
    terminal = rich.console.Console(file=out, force_terminal=True, color_system=None, width=80)
    monkeypatch.setattr(screen_lib, "make_console", lambda **_: terminal)
    command = f"python -m bert_jax.train '--config.data.store=a store' --workdir={'x' * 60}"
    forecast = Forecast("w256-16M", 256, 3_145_728, 16e6, 3e14, 2.5, 2.4, 2.7, command)
    ladder_report.show_forecasts([forecast], screen_lib.Screen(is_writer=True))
    printed = out.getvalue()
    pasted = printed[printed.index("python -m") :].replace("\\\n", "")
    assert printed.count("\\\n") == 1 and shlex.split(pasted) == shlex.split(command)


FLAGS = [
    *("--config=configs/quickstart.py", "--config.compute.rolled_layers=True"),
    *("--config.phases[0].seq_len=16", "--config.phases[0].batch_size=8"),
    *("--config.eval.examples=16", "--widths=16,32", "--tokens=384,4k,8k,16k"),
]


def leave_run(folder, width, name, tokens):
    """Leave what a finished rung leaves: steps of 128 positions, a tenth of them padding."""
    (folder / f"w{width}-{name}-seed0").mkdir(parents=True, exist_ok=True)
    tokens = round(tokens / 128) * 115.2
    summary = {
        "heldout_mlm_loss": known_loss(width * 16, tokens * 1000),
        "unigram_mlm_loss": 7.0,
        "ngram_mlm_loss": 5.0,
        "phases": [{"tokens_per_step": 115.2}],
    }
    (folder / f"w{width}-{name}-seed0" / SUMMARY).write_text(json.dumps(summary))


@pytest.mark.long
def test_the_command_trains_what_is_missing_and_fits_what_is_past_the_plateau(
    forked, tiny_store, tmp_path
):
    folder = tmp_path / "ladder"
    for width in (16, 32):
        for name, tokens in (("384", 384), ("4k", 4000), ("8k", 8000), ("16k", 16000)):
            if (width, name) != (32, "384"):  # this one is trained
                leave_run(folder, width, name, tokens)
    command = [*FLAGS, f"--config.data.store={tiny_store}", f"--workdir={folder}"]
    done = forked("bert_jax.ladder", *command, "--predict=64:32k")
    content = json.loads((folder / LADDER).read_text())
    used = {rung["name"]: rung["is_used"] for rung in content["rungs"]}
    assert len(used) == 8 and not used["w32-384"]  # three steps
    assert "w32-384 is left out" in done.stdout
    law = read_ladder(folder)
    assert law.points[-1] == Point(
        24576, 125 * 115.2, open_store(tiny_store).train.tokens, law.points[-1].loss
    )
    assert "wordpiece, 200 tokens" in law.vocabulary
    (forecast,) = content["predictions"]
    assert forecast["tokens"] == pytest.approx(32000 * 0.9, rel=0.15)
    assert forecast["low"] < known_loss(64 * 16, forecast["tokens"] * 1000) < forecast["high"]
    assert forecast["command"] in done.stdout.replace("\n", "")
    assert (folder / ladder_report.PICTURE).read_bytes().startswith(b"\x89PNG")
