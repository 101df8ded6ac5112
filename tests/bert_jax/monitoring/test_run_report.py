"""The report of a run says what its files say, whatever of them is missing."""

import fcntl
import json
import math
import os
import pathlib
import re
import socket

import pytest

from bert_jax import report
from bert_jax.monitoring.run_report import (
    compare,
    describe_settings,
    describe_verdict,
    draw_tree,
    list_facts,
    render_page,
)
from bert_jax.monitoring.run_state import read_run
from data_pipeline.store import MANIFEST
from tests.damages import edit_json
from tests.data_pipeline.stores import random_documents, write_store


def make_run(folder, losses=(6.0, 5.0), rate=0.1, seed=0, store="abc", steps=20):
    """A run's files; losses are held out, at steps 10, 20 and so on."""
    folder.mkdir()
    config = {
        "seed": seed,
        "objective": "mlm",
        "model": {"vocab_size": 1000},
        "optim": {"learning_rate": rate},
        "phases": [{"steps": steps}],
    }
    fixed = {"data.store (digest of its contents)": store}
    record = {"config": config, "fixed": fixed, "devices": "4 x cpu"}
    (folder / "run.json").write_text(json.dumps(record))
    lines = []
    for number, loss in enumerate(losses, 1):
        scores = {"loss": loss, "mlm_loss": loss, "mlm_accuracy": 0.5}
        line = {"step": 10 * number, "split": "train", **scores, "sequences_per_sec": 50.0}
        lines += [
            line,
            {"step": 10 * number, "split": "heldout", **scores, "unigram_mlm_loss": 5.5},
        ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    secs = {"training": 1800.0, "compiling": 1800.0}
    attempt = {"began": 0.0, "step": 20, "secs": secs, "at": 3600.0}
    (folder / "attempts.jsonl").write_text(json.dumps(attempt) + "\n")
    findings = [{"rule": "flat", "step": 5, "sentence": "It is <flat>.", "try": "Less."}]
    summary = {"phases": [{"tokens_per_step": 128.0}], "findings": findings}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def edit_record(folder, **settings):
    edit_json(folder / "run.json", lambda record: record["config"].update(settings))


def test_the_verdict_and_the_receipt_are_those_of_the_files(tmp_path):
    run = read_run(make_run(tmp_path / "a"))
    assert describe_verdict(run) == (
        "a: finished at step 20 of 20; held-out mlm loss 5.000, 0.500 below unigram; 1 finding."
    )
    facts = dict(list_facts(run))
    assert facts["goodput"] == "50.0%"
    assert facts["device hours"] == "4.00 (4 x cpu)"
    assert facts["tokens"] == "2,560"
    assert run.reference_lines("mlm") == {"unigram": 5.5, "ln V": math.log(1000)}
    assert list(run.missing) == []


def test_a_run_has_a_name_from_its_own_folder_too(tmp_path, monkeypatch):
    monkeypatch.chdir(make_run(tmp_path / "a"))
    assert describe_verdict(read_run(pathlib.Path())).startswith("a: finished at step 20")
    (tmp_path / "a" / "below").mkdir()
    monkeypatch.chdir(tmp_path / "a" / "below")
    assert describe_verdict(read_run(pathlib.Path(".."))).startswith("a: finished at step 20")


def test_a_folder_whose_name_is_not_utf_8_has_a_page(tmp_path, capsys):
    try:
        folder = make_run(pathlib.Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")))
    except OSError:
        pytest.skip("needs a file system whose names are bytes")
    page = tmp_path / "page.html"
    assert report.main([str(folder), f"--output={page}"]) == 0
    assert capsys.readouterr().out.startswith(r"caf\udce9: finished at step 20")
    assert r"caf\udce9" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (5.6, "0.100 above unigram (no better than word frequencies)"),
        (5.0, "0.500 below unigram, 0.800 above n-gram"),
        (4.0, "0.200 below n-gram"),
    ],
)
def test_the_verdict_names_the_lines_that_the_loss_lies_between(tmp_path, loss, words):
    folder = make_run(tmp_path / "a", losses=(6.0, loss))
    lines = (folder / "metrics.jsonl").read_text()
    more = '"unigram_mlm_loss": 5.5, "ngram_mlm_loss": 4.2'
    (folder / "metrics.jsonl").write_text(lines.replace('"unigram_mlm_loss": 5.5', more))
    assert f"held-out mlm loss {loss:.3f}, {words}; 1" in describe_verdict(read_run(folder))


def test_the_lock_tells_a_stopped_run_from_a_live_one(tmp_path):
    folder = make_run(tmp_path / "a")
    (folder / "summary.json").unlink()
    assert describe_verdict(read_run(folder)).startswith("a: not finished at step 20 of 20;")
    holder = {"host": socket.gethostname(), "pid": 7}
    (folder / "lock").write_text(json.dumps(holder))
    assert describe_verdict(read_run(folder)).startswith("a: stopped at step 20 of 20;")
    with open(folder / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run = read_run(folder)
    assert describe_verdict(run).startswith("a: running at step 20 of 20;")
    assert list(run.missing) == ["There is no summary.json: the run is still going on."]
    for other in (holder | {"renewed": 3}, holder | {"host": "another"}):  # copied to this host
        (folder / "lock").write_text(json.dumps(other))
        assert read_run(folder).state == "not finished"


def test_findings_come_before_the_receipt(tmp_path, capsys):
    assert report.main([str(make_run(tmp_path / "a"))]) == 0
    verdict, finding, advice, fact, *_ = capsys.readouterr().out.splitlines()
    assert verdict.startswith("a: finished") and fact.startswith("  sequences per second")
    assert (finding, advice) == ("! flat: It is <flat>.", "  Less.")


def test_dollars_and_positions_follow_from_chips_and_steps(tmp_path):
    folder = make_run(tmp_path / "a")
    phases = [
        {"steps": 15, "batch_size": 4, "seq_len": 8},
        {"steps": 15, "batch_size": 2, "seq_len": 16},
    ]
    edit_record(folder, phases=phases)
    code = {"bert_jax": "0.1.0", "commit": "0123456789abcdef", "python": "3.11.7", "packages": {}}
    other = {"devices": "8 x TPU v3", "processes": 2, "code": code}
    edit_json(folder / "run.json", lambda record: record.update(other))
    (folder / "summary.json").unlink()
    (tmp_path / "a-probe").mkdir()
    (tmp_path / "a-probe" / "probe.jsonl").write_text('{"step": 10, "score": 0.75, "secs": 1.0}\n')
    facts = dict(list_facts(read_run(folder), {"v3": 2.5}))
    assert facts["positions"] == f"{15 * 32 + 5 * 32:,}, padding included"
    assert facts["device hours"] == "8.00 (8 x TPU v3)"
    assert facts["dollars"] == "10.00 at 2.5 per v3 hour"  # two devices are a chip
    assert facts["devices"] == "8 x TPU v3, 2 processes"
    assert facts["code"] == "bert_jax 0.1.0, commit 0123456789ab"
    assert facts["versions"] == "python 3.11.7"
    assert facts["probe"] == "0.7500 at step 10"


def test_a_fine_tuning_shows_its_scores_on_the_development_set(tmp_path):
    folder = make_run(tmp_path / "a")
    scores = {"dev_loss": 0.6, "dev_f1": 0.5, "dev_mm_accuracy": 0.75, "majority_dev_f1": 0.4}
    lines = [{"step": step, "split": "heldout", **scores} for step in range(1, 8)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    facts = dict(list_facts(read_run(folder)))
    assert facts["dev_f1"] == ", ".join(f"0.5000 at step {step}" for step in range(3, 8))
    assert facts["dev_mm_accuracy"].endswith("0.7500 at step 7")
    assert not {"dev_loss", "majority_dev_f1", "probe"} & facts.keys()


def test_the_data_are_those_of_the_store_if_it_is_the_run_s(tmp_path):
    documents = random_documents(6, seed=1)
    store = tmp_path / "wiki, books"  # one store, not two
    write_store(store, documents[:3], documents[3:], digest="abc" + 61 * "0")
    folder = make_run(tmp_path / "a")
    edit_record(folder, data={"store": str(store)})
    facts = dict(list_facts(read_run(folder)))
    assert facts["train split"] == "3 documents, 120 sentences, 600 tokens"
    assert facts["vocabulary"] == "wordpiece, 205 entries, lower case without accents"
    assert facts["sources"] == "corpus.txt"
    edit_json(store / MANIFEST, lambda manifest: manifest.update(digest=64 * "1"))
    run = read_run(folder)
    assert "other contents" in run.missing[-1] and "sources" not in dict(list_facts(run))
    edit_record(folder, data={"store": ",".join(f"part_{number}" for number in range(40))})
    assert "part_39 is not a store on this machine" in read_run(folder).missing[-1]


def test_the_page_loads_nothing_and_escapes_text(tmp_path):
    html = render_page([read_run(make_run(tmp_path / "a")), read_run(make_run(tmp_path / "b<i>"))])
    assert html.count("<svg") == html.count("</svg>") == 1
    assert "It is &lt;flat&gt;." in html.partition("<svg")[0] and "<i>" not in html
    assert not re.search(r"https?://|src=|href=|url\(|@import", html)


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ({"run.json"}, "metrics.jsonl has no numbers yet"),
        ({"metrics.jsonl"}, "run.json is missing."),
        ({"attempts.jsonl"}, "There is no summary.json"),
    ],
)
def test_each_missing_part_is_named_and_the_page_is_written(tmp_path, kept, words):
    folder = make_run(tmp_path / "a")
    for path in folder.iterdir():
        if path.name not in kept:
            path.unlink()
    run = read_run(folder)
    assert words in " ".join(run.missing)
    assert describe_verdict(run) in render_page([run])


def test_a_run_stopped_between_two_lines_of_metrics_has_its_last_step(tmp_path):
    folder = make_run(tmp_path / "a", steps=90)
    (folder / "summary.json").unlink()
    with (folder / "attempts.jsonl").open("a") as file:
        file.write(json.dumps({"began": 0.0, "step": 27, "secs": {}, "at": 3700.0}) + "\n")
    assert "at step 27 of 90" in describe_verdict(read_run(folder))


def test_a_damaged_file_is_named_and_the_rest_is_read(tmp_path):
    folder = make_run(tmp_path / "a")
    (folder / "run.json").write_text('{"config": ')
    (folder / "attempts.jsonl").write_text("nonsense\n")
    run = read_run(folder)
    assert len(run.missing) == 3  # of attempts: that it is damaged, and what is not known
    assert run.list_heldout_terms() == ["mlm"]


@pytest.mark.parametrize(("base", "is_more"), [(5.9, True), (5.0, False)])
def test_a_difference_counts_if_it_is_larger_than_the_noise_between_seeds(tmp_path, base, is_more):
    table = {"a0": (0.1, 4.9), "a1": (0.1, 5.1), "b0": (0.2, base), "b1": (0.2, base + 0.2)}
    runs = [
        read_run(make_run(tmp_path / key, (6.0, loss), rate, seed=index))
        for index, (key, (rate, loss)) in enumerate(table.items())
    ]
    # Both groups have a variance of 0.02, and t is 4.3027 at 2 degrees of freedom.
    gap, half = base + 0.1 - 5.0, 4.3027 * math.sqrt(0.02)
    verdict = "more than" if is_more else "within"
    assert f"b0 - a0: {gap:+.4f} ± {half:.4f} mlm loss, {verdict} the noise." in compare(runs)
    assert describe_settings(runs) == ["optim.learning_rate: 0.1 in a0, a1; 0.2 in b0, b1."]


@pytest.mark.parametrize("again", ["a1", "b1"])
def test_a_run_that_is_given_twice_says_nothing_about_noise(tmp_path, again):
    for name, rate in (("a0", 0.1), ("b0", 0.2)):
        make_run(tmp_path / name, (6.0, rate), rate)
    (tmp_path / again).symlink_to(again.replace("1", "0"))
    sentences = compare([read_run(tmp_path / name) for name in sorted(["a0", "b0", again])])
    name = again.replace("1", "0")
    assert sentences[0].startswith(
        f"Not compared: {again} has settings, seeds and losses of {name}:"
    )
    assert sentences[-1] == "b0 - a0: +0.1000 mlm loss, noise unknown."


def test_losses_are_not_compared_without_a_ground(tmp_path):
    base = read_run(make_run(tmp_path / "a"))
    other = read_run(make_run(tmp_path / "b", rate=0.2))
    assert "the noise is not known" in " ".join(compare([base, other]))
    elsewhere = read_run(make_run(tmp_path / "c", store="xyz"))
    assert compare([base, elsewhere])[-1].startswith("Their stores differ")
    early = read_run(make_run(tmp_path / "d", steps=400))
    assert "d has not finished" in " ".join(compare([base, early]))


def test_losses_of_other_objectives_are_compared_by_the_terms_they_share(tmp_path):
    make_run(tmp_path / "a")
    edit_record(make_run(tmp_path / "b"), objective="mlm_nsp", data={"segments": "nsp"})
    lines = (tmp_path / "b" / "metrics.jsonl").read_text()
    more = '"mlm_accuracy": 0.5, "nsp_loss": 0.6, "nsp_accuracy": 0.7'
    (tmp_path / "b" / "metrics.jsonl").write_text(lines.replace('"mlm_accuracy": 0.5', more))
    sentences = compare([read_run(tmp_path / "a"), read_run(tmp_path / "b")])
    assert "b - a: +0.0000 mlm loss, noise unknown." in sentences
    assert not any("nsp loss" in sentence for sentence in sentences)
    (tmp_path / "b" / "metrics.jsonl").write_text(lines.replace("mlm_", "rtd_"))
    sentences = compare([read_run(tmp_path / "a"), read_run(tmp_path / "b")])
    assert sentences[-1].startswith("Their objectives share no term")


def test_a_loss_of_an_earlier_phase_is_not_taken_for_the_run_s(tmp_path):
    make_run(tmp_path / "causal")
    lines = (tmp_path / "causal" / "metrics.jsonl").read_text()
    (tmp_path / "causal" / "metrics.jsonl").write_text(lines.replace("mlm_", "causal_"))
    first, second = (text.splitlines(True) for text in (lines.replace("mlm_", "causal_"), lines))
    make_run(tmp_path / "both")
    (tmp_path / "both" / "metrics.jsonl").write_text("".join(first[:2] + second[2:]))
    both = read_run(tmp_path / "both")
    assert "causal" not in describe_verdict(both) and "held-out mlm loss" in describe_verdict(both)
    assert both.list_terms() == ["causal", "mlm"]
    assert compare([both, read_run(tmp_path / "causal")])[-1].startswith("Their objectives share")


def test_the_page_has_the_guesses_of_each_run(tmp_path):
    runs = [read_run(make_run(tmp_path / name)) for name in "ab"]
    page = render_page(runs, samples=[[("a [MASK] & b", "the 50%")], []])
    assert page.count("Guesses for a hidden word") == 1
    assert re.search(
        '<li dir="auto">a \\[MASK\\] &amp; b<br><span [^>]*pre-wrap[^>]*>the 50%</span></li>', page
    )
    assert "Guesses for a hidden word" not in render_page(runs)


def test_runs_on_different_stores_have_no_reference_lines(tmp_path):
    runs = [read_run(make_run(tmp_path / name)) for name in "ab"]
    assert ">unigram<" in render_page(runs)
    elsewhere = read_run(make_run(tmp_path / "c", store="xyz"))
    assert ">unigram<" not in render_page([*runs, elsewhere])


def test_branches_stand_below_their_trunk_and_shared_steps_are_paid_once(tmp_path):
    trunk = make_run(tmp_path / "trunk")
    runs = [read_run(trunk)]
    assert draw_tree(runs) == []
    for name, step in (("late", 15), ("early", 5)):
        folder = make_run(tmp_path / name)
        entry = {"branch": {"run": str(trunk.resolve()), "step": step}}
        edit_json(folder / "run.json", lambda record, entry=entry: record.update(entry))
        runs.append(read_run(folder))
    assert draw_tree(runs) == [
        "trunk: 2,560 tokens, 4.00 device hours",
        "   early from step 5: 1,920 tokens, 4.00 device hours",
        "   late from step 15: 640 tokens, 4.00 device hours",
        "together: 5,120 tokens, 12.00 device hours; unbranched, the runs read 7,680 tokens",
    ]
    assert dict(list_facts(runs[1]))["tokens"] == "640"
    assert "early from step 5" in render_page(runs)
    assert draw_tree(runs[1:])[0].startswith(f"late from step 15 of {trunk.resolve()}: 640")
    for run in runs:
        edit_record(run.folder, phases=[{"steps": 20, "batch_size": 2, "seq_len": 100}])
    (runs[1].folder / "summary.json").unlink()
    assert draw_tree([read_run(run.folder) for run in runs]) == [
        "trunk: 4,000 positions, 4.00 device hours",
        "   early from step 5: 3,000 positions, 4.00 device hours",
        "   late from step 15: 1,000 positions, 4.00 device hours",
        "together: 8,000 positions, 12.00 device hours; unbranched, the runs read 12,000 positions",
    ]
