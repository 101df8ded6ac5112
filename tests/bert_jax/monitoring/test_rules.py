"""Rules on made-up curves: each finds its fault, and nothing in a curve of a good run."""

import dataclasses
import json
import pathlib
from types import SimpleNamespace

import numpy as np
import pytest

from bert_jax.config import Config, ModelConfig, OptimConfig, Phase
from bert_jax.logging.metrics_writer import MetricsFile
from bert_jax.monitoring import rules
from bert_jax.monitoring import watch as watch_lib
from bert_jax.monitoring.rules import Finding
from bert_jax.monitoring.watch import Watch
from data_pipeline.io.jsonl import FINDING, read_lines, read_metrics

STEPS, EVERY = 10_000, 100
UNIGRAM, UNIFORM = 6.4, float(np.log(4096))
CONFIG = Config(
    model=ModelConfig(vocab_size=4096),
    phases=(Phase(64, STEPS),),
    optim=OptimConfig(learning_rate=1e-3, warmup_steps=500),
)
BASELINE = {"unigram_mlm_loss": UNIGRAM, "majority_nsp_accuracy": 0.51}
PREDICTIONS, EXAMPLES = 500.0, 100.0  # a step
PER_STEP = {"predictions_per_step": PREDICTIONS, "examples_per_step": EXAMPLES}
LINES = np.arange(EVERY, STEPS + 1, EVERY)


def good_losses(seed=0):
    """From a guess to the unigram line, a short plateau there, and down, with the draw's noise."""
    rng = np.random.default_rng(seed)
    first = (UNIFORM - UNIGRAM) * np.exp(-LINES / 150)
    later = 3.5 * (1 - (1 + np.maximum(LINES - 400, 0) / 3000) ** -0.5)
    noise = 2.5 / np.sqrt(PREDICTIONS * EVERY)
    return UNIGRAM + 0.02 + first - later + rng.normal(0, noise, len(LINES))


def lines_of(losses, **others):
    share = LINES / STEPS
    rate = 1e-3 * np.minimum(LINES / 500, (1 - share) / 0.95)
    columns = {
        "mlm_loss": losses,
        "mlm_accuracy": np.full(len(LINES), 0.3),
        "nsp_loss": 0.69 - 0.5 * share,
        "nsp_accuracy": 0.5 + 0.4 * np.minimum(1, 2 * share),
        "grad_norm": np.full(len(LINES), 1.5),
        "learning_rate": rate,
        "input_wait_share": np.zeros(len(LINES)),
        **others,
    }
    return [
        {"step": int(step), "split": "train", **{k: float(v[i]) for k, v in columns.items()}}
        for i, step in enumerate(LINES[: len(losses)])
    ]


NO_FILE = SimpleNamespace(read_lines=lambda: [], write_lines=lambda lines: None)


def apart(line):
    return (
        line["step"],
        line["split"],
        {k: v for k, v in line.items() if k not in ("step", "split")},
    )


def watch(lines, config=CONFIG, baseline=BASELINE):
    shown = []
    count = len(config.phases)
    facts = [baseline] * count, [PER_STEP] * count
    watching = Watch(config, *facts, (), lambda *words: shown.append(words), NO_FILE)
    watching.on_start(0)
    for line in lines:
        watching.on_record(*apart(line))
    found = [(each.rule, each.sentence, each.advice) for each in watching.findings]
    assert shown == found
    return {finding.rule: finding for finding in watching.findings}


def with_heldout(losses, heldout):
    """An evaluation after every tenth of the run."""
    lines = lines_of(losses)
    for index in range(9, len(lines), 10):
        at = lines[index]["step"]
        values = {"mlm_loss": float(heldout[index // 10]), **BASELINE}
        lines[index] = [lines[index], {"step": at, "split": "heldout", **values}]
    return [each for line in lines for each in (line if isinstance(line, list) else [line])]


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_found_in_a_good_run(seed):
    losses = good_losses(seed)
    assert watch(with_heldout(losses, losses[9::10] + 0.1)) == {}


def test_a_fast_fall_is_not_taken_for_jumps():
    measured = [7.121, 5.970, 5.641, 5.457, 5.086, 4.775, 4.603, 4.463, 4.326, 4.240, 4.133, 4.085]
    assert watch(lines_of(np.array(measured))) == {}
    jumping = np.array(measured) + np.where(np.arange(12) % 2, 0.4, -0.4)
    assert "not_shuffled" in watch(lines_of(jumping))


def test_a_long_run_is_judged_by_a_part_of_its_lines(monkeypatch):
    monkeypatch.setattr(watch_lib, "_MAX_LINES", 100)
    exact = {"predictions_per_step": 1e9, "examples_per_step": 1e8}
    whole, seen = Watch(CONFIG, [BASELINE], [exact], (), print, NO_FILE), 0
    for line in lines_of(good_losses()) * 3:
        whole.on_record(*apart(line))
        seen = max(seen, len(whole._lines["train"]))
    assert seen <= 101


RISING = np.where(np.arange(100) < 40, good_losses(), 6.9)
JUMPING = good_losses() + np.where(np.arange(100) % 2, 0.4, -0.4)
FAULTS = {
    "nothing_learned": (np.full(100, UNIFORM - 0.05), {}),
    "rate_too_low": (UNIFORM - 1.7 * LINES / STEPS, {}),
    "rate_too_high": (RISING, {}),
    "stuck_at_unigram": (np.maximum(good_losses(), UNIGRAM - 0.01), {}),
    "targets_visible": (good_losses(), {"mlm_accuracy": np.full(100, 0.99)}),
    "next_sentence_at_chance": (good_losses(), {"nsp_accuracy": np.full(100, 0.51)}),
    "next_sentence_too_easy": (good_losses(), {"nsp_accuracy": np.full(100, 0.999)}),
    "not_shuffled": (JUMPING, {}),
    "input_starves": (good_losses(), {"input_wait_share": np.full(100, 0.4)}),
    "gradient_growing": (
        np.maximum(good_losses(), 5.0),
        {"grad_norm": np.where(np.arange(100) < 80, 1.5, 30.0)},
    ),
}


EARLY = ("nothing_learned", "rate_too_low", "stuck_at_unigram", "targets_visible")


@pytest.mark.parametrize("rule", FAULTS)
def test_a_fault_is_found_and_no_other(rule):
    losses, others = FAULTS[rule]
    found = watch(lines_of(losses, **others))
    assert list(found) == [rule]
    sentence, advice = found[rule].sentence, found[rule].advice
    assert sentence.endswith(".") and advice.endswith(".")
    assert found[rule].step <= STEPS / 10 or rule not in EARLY


def split_at(*steps):
    """The config with phases that end at these steps, the last at its end."""
    lengths = np.diff([0, *steps, STEPS]).tolist()
    return dataclasses.replace(CONFIG, phases=tuple(Phase(64, length) for length in lengths))


@pytest.mark.parametrize("rule", EARLY[:3])
def test_a_loss_is_judged_at_a_constant_rate_and_after_a_batch_that_grows_too(rule):
    losses, others = FAULTS[rule]
    constant = others | {"learning_rate": 1e-3 * np.minimum(LINES / 500, 1)}
    for config, lines in ((CONFIG, 10), (split_at(300, 600), 16)):
        for columns in (others, constant):
            assert list(watch(lines_of(losses, **columns)[:lines], config)) == [rule]
    assert watch(lines_of(good_losses()), split_at(300, 600)) == {}


def test_next_sentences_that_a_later_phase_begins_with_are_given_time():
    accuracies = 0.5 + 0.4 * np.clip((LINES - 5000) / 2000, 0, 1)
    later = split_at(5000)
    assert watch(lines_of(good_losses(), nsp_accuracy=accuracies)[50:], later) == {}
    at_chance = lines_of(good_losses(), nsp_accuracy=np.full(100, 0.51))[50:]
    assert watch(at_chance, later)["next_sentence_at_chance"].step == 6000


def test_visible_targets_are_told_from_a_line_of_few_and_in_the_words_of_their_objective():
    once = {"mlm_accuracy": np.where(np.arange(100) == 50, 0.95, 0.6)}
    assert watch(lines_of(good_losses(), **once)) == {}
    for term, names_masks in (("mlm", True), ("causal", False)):
        [visible] = watch([{"step": 1, "split": "train", f"{term}_accuracy": 1.0}]).values()
        assert visible.rule == "targets_visible"
        assert ("mask_token_share" in visible.advice) == names_masks


def test_a_plateau_is_reported_late_where_targets_fit_their_neighbors():
    baseline = BASELINE | {"ngram_mlm_loss": UNIGRAM - 1.5}
    losses = np.maximum(good_losses(), UNIGRAM - 0.01)
    assert watch(lines_of(losses), baseline=baseline)["stuck_at_unigram"].step == 0.3 * STEPS
    losses[LINES > 0.25 * STEPS] -= 1.0
    assert watch(lines_of(losses), baseline=baseline) == {}


def test_a_rate_that_spoils_next_sentences_too_is_too_high():
    lines = lines_of(np.full(100, UNIGRAM + 0.05), nsp_loss=np.full(100, 0.74))
    found = watch(lines)
    assert list(found) == ["rate_too_high"]
    sentence = found["rate_too_high"].sentence
    assert f"masked words is {UNIGRAM + 0.05:.2f}, " in sentence and f"({UNIGRAM:.2f})" in sentence
    plateau = lines_of(np.full(100, UNIGRAM), nsp_loss=np.full(100, 0.71))
    assert list(watch(plateau)) == ["stuck_at_unigram"]


def test_a_heldout_loss_that_rises_twice_is_found():
    heldout = [6, 5, 4.5, 4.2, 4.0, 4.2, 4.1, 4.0, 4.3, 4.4]
    found = watch(with_heldout(good_losses(), np.array(heldout)))
    assert list(found) == ["heldout_rising"]
    assert "was 4.00 at step 5,000" in found["heldout_rising"].sentence


def test_settings_that_seldom_work_are_found_with_the_first_line():
    model = dataclasses.replace(CONFIG.model, hidden_dropout_prob=0.9)
    optim = dataclasses.replace(CONFIG.optim, warmup_steps=0)
    found = watch(lines_of(good_losses()), dataclasses.replace(CONFIG, model=model, optim=optim))
    assert {rule: each.step for rule, each in found.items()} == {
        "no_warmup": EVERY,
        "much_dropout": EVERY,
    }
    pre_norm = dataclasses.replace(CONFIG.model, norm_position="pre")
    assert watch(lines_of(good_losses()), dataclasses.replace(CONFIG, model=pre_norm)) == {}


def test_a_dead_generator_is_found():
    rtd = {"rtd_auc": np.full(100, 0.5), "rtd_replaced_share": np.full(100, 0.1)}
    assert list(watch(lines_of(good_losses(), **rtd))) == ["generator_dead"]
    rtd = {"rtd_auc": np.full(100, 0.9), "rtd_replaced_share": np.full(100, 0.001)}
    assert (
        "the generator is right" in watch(lines_of(good_losses(), **rtd))["generator_dead"].sentence
    )


def test_findings_are_written_once_also_by_a_run_that_resumes_or_rolls_back(tmp_path):
    data = Finding("unknown_tokens", 0, "So many.", "Train one.")
    lines = lines_of(np.full(100, UNIGRAM))[:30]

    def begin(first_step):
        file = MetricsFile(tmp_path)
        watching = Watch(CONFIG, [BASELINE], [PER_STEP], [data], print, file)
        start([file, watching], first_step)
        return [file, watching]

    def start(listeners, step):
        for listener in listeners:
            listener.on_start(step)

    def write(listeners, some):
        for line in some:
            for listener in listeners:
                listener.on_record(line["step"], "train", {"mlm_loss": line["mlm_loss"]})

    records = begin(0)
    write(records, lines)
    path = tmp_path / "metrics.jsonl"
    once = path.read_text()
    assert [line["rule"] for line in read_lines(path) if line["split"] == FINDING] == [
        "unknown_tokens",
        "stuck_at_unigram",
    ]
    assert len(read_metrics(path)) == 30
    for back_to in (0, 500, 2500):  # before the finding, and after it
        start(records, back_to)
        assert all(line["step"] <= back_to for line in read_metrics(path))
        write(records, [line for line in lines if line["step"] > back_to])
        assert path.read_text() == once
    records[0].on_close(None)
    records = begin(1500)
    write(records, lines[15:])
    summary = {}
    for listener in reversed(records):
        listener.on_close(summary)
    assert path.read_text() == once
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [each["rule"] for each in summary["findings"]] == ["unknown_tokens", "stuck_at_unigram"]


def test_an_evaluation_that_a_killed_start_made_counts_once(tmp_path):
    for again in (False, True):
        file = MetricsFile(tmp_path)
        watching = Watch(CONFIG, [{}], [PER_STEP], [], print, file)
        for listener in (file, watching):
            listener.on_start(500 if again else 0)
        for number, loss in enumerate((5.0, 4.0, 3.9, 4.1), 1):
            if not again or number == 4:
                for listener in (file, watching):
                    listener.on_record(number * EVERY + 100, "heldout", {"mlm_loss": loss})
        assert not watching.findings
        file.on_close(None)


def test_each_rule_is_in_the_guide():
    text = (pathlib.Path(__file__).parents[3] / "docs/guide/on_track.md").read_text()
    before_training = ["next_sentence_inverted", "document_copies", "pieces_per_word"]
    before_training.append("marks_stripped")
    for rule in [*rules.RULES, *before_training, "targets_misplaced"]:
        assert f"`{rule}`" in text
