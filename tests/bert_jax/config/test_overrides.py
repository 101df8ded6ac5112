"""What a command line makes of a config: every field and its wrong values, and broken files."""

import os
import sys

import pytest

from bert_jax.config import Config, FinetuneConfig, Phase, arguments, overrides
from bert_jax.config.overrides import Override
from bert_jax.runtime import cli
from tests.bert_jax.config.test_validate import FIELDS

# By type: texts that a field of it must not take, and one that it takes with its value.
WRONG = {
    int: ["", "abc", "1.5", "1e-3", "nan", "inf", "1e99", "9" * 5000, "0x10", "None", "True"],
    float: ["", "abc", "nan", "inf", "-inf", "1e999", "None", "True", "1,5"],
    bool: ["", "yes", "no", "maybe", "2", "None", "1.0"],
    str: ["'mlm", '"mlm"', "mlm'"],
}
WORDS = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}
RIGHT = {
    int: {"7": 7, "1e3": 1000, "1_000": 1000, "2.0": 2, "-1": -1},
    float: {"5e-5": 5e-5, "1": 1.0, "-0.5": -0.5},
    bool: {"True": True, "false": False, "1": True, "F": False},
    str: {"": "", "a b": "a b", "it's": "it's", "0": "0"},
}


def settings(kind, phases=""):
    """The text of a config file of this kind."""
    return (
        "from bert_jax.config import Config, FinetuneConfig, Phase, to_config_dict\n"
        f"def get_config(): return to_config_dict({kind.__name__}({phases}))\n"
    )


TEXTS = {
    Config: settings(Config, "phases=(Phase(64, 10),)"),
    FinetuneConfig: settings(FinetuneConfig),
}


@pytest.fixture
def load(tmp_path):
    """Load a config file, by default one of its kind, with overrides."""

    def load(kind, *given, text=None):
        file = tmp_path / "mine.py"
        file.write_text(TEXTS[kind] if text is None else text)
        return overrides.load(kind, str(file), str, [Override(*pair) for pair in given])

    return load


def value(config, path):
    return eval(f"config.{path}", {}, {"config": config})


def test_there_are_all_types_of_fields_and_no_other():
    assert {hint for _, _, hint, _ in FIELDS} == WRONG.keys() == RIGHT.keys()


@pytest.mark.slow
def test_a_wrong_type_is_refused_with_its_key_and_value(load):
    """Every text for the first field of a type, a text in turn for each other one."""
    seen = set()
    for number, (kind, path, hint, _) in enumerate(FIELDS):
        texts = WRONG[hint]
        for text in [texts[number % len(texts)]] if (kind, hint) in seen else texts:
            with pytest.raises(ValueError, match="it must be") as refused:
                load(kind, (path, text))
            message = str(refused.value)
            assert message.startswith(f"--config.{path}={text[:50]}")
            assert WORDS[hint] in message and len(message) < 250
        seen.add((kind, hint))


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("number", range(5))
def test_a_right_value_reaches_its_field(load, kind, number):
    """The same one of its type's values for every field at once."""
    given = {
        path: list(RIGHT[hint].items())[number % len(RIGHT[hint])]
        for of, path, hint, _ in FIELDS
        if of is kind
    }
    config = load(kind, *((path, text) for path, (text, _) in given.items()))
    for path, (_, wanted) in given.items():
        got = value(config, path)
        assert got == wanted and type(got) is type(wanted), path


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("learning_rate", "did you mean --config.optim.learning_rate?"),
        ("optim.lerning_rate", "did you mean --config.optim.learning_rate?"),
        ("optm.learning_rate", "did you mean --config.optim.learning_rate?"),
        ("logging_every_steps", "did you mean --config.log_every_steps?"),
        ("log.every_steps", "did you mean --config.log_every_steps?"),
        ("logging_steps", "did you mean --config.log_every_steps?"),
        ("steps_per_log", "did you mean --config.log_every_steps?"),
        ("eval_every_steps", "did you mean --config.eval.every_steps?"),
        ("save_steps", "did you mean --config.checkpoint.every_steps?"),
        ("optim.lr", "did you mean --config.optim.learning_rate?"),
        ("phases[0].learning_rate", "did you mean --config.phases[0].restart_learning_rate or"),
        ("model.rolled_layers", "did you mean --config.compute.rolled_layers?"),
        ("optim.zzz", "the fields of config.optim are name, learning_rate"),
        ("seed.zzz", "did you mean --config.seed?"),
        ("seed[0]", "did you mean --config.seed?"),
        ("phases.0.steps", "write --config.phases[0].steps=VALUE"),
        ("phases.0", "write --config.phases[0]=VALUE"),
        ("phases", "--config.phases[0].seq_len=VALUE; its fields are seq_len, steps"),
        ("phases[0]", "--config.phases[0].seq_len=VALUE; its fields are seq_len, steps"),
        ("phases[1]", "--config.phases[1].seq_len=VALUE; its fields are seq_len, steps"),
        (f"phases[{'9' * 5000}].steps", "did you mean --config.phases[0].steps?"),
        ("initializer", "did you mean --config.model.initializer"),
        ("phases[0].stps", "did you mean --config.phases[0].steps?"),
        ("phases[x].steps", "did you mean --config.phases[0].steps?"),
        ("phases[9].steps", "this config has 1 phases, counted from 0"),
        ("phases[-2].steps", "this config has 1 phases, counted from 0"),
        ("compute", "--config.compute.compute_dtype=VALUE; its fields are compute_dtype"),
        ("", "there is no such field; the fields of config are init, "),
        ("__class__", "there is no such field"),
    ],
)
def test_a_path_that_leads_nowhere_names_a_way(load, path, words):
    with pytest.raises(ValueError, match=r"^--config") as refused:
        load(Config, (path, "5"))
    assert str(refused.value).startswith(f"--config.{path}=5: ")
    assert words in str(refused.value)


def test_a_colon_without_text_counts_as_none(load, tmp_path):
    expected = load(Config)
    assert overrides.load(Config, f"{tmp_path / 'mine.py'}:", str, []) == expected


SHAPED = """
from bert_jax.config import Config, Phase, arguments, to_config_dict
def get_config(text=""):
    given = arguments(text, size=("s", "m"), shape=("a", "b"))
    return to_config_dict(Config(phases=(Phase(64, {"a": 1, "b": 2}[given["shape"]]),), init=text))
"""


@pytest.mark.parametrize("folder", ["runs", "run of 12:30"])
def test_a_flag_sets_an_argument_of_the_file_as_text_after_the_colon_does(tmp_path, folder):
    file = tmp_path / folder / "mine.py"
    file.parent.mkdir()
    file.write_text(SHAPED)
    given = [Override("shape", "b"), Override("seed", "3")]
    place, rest = overrides.move_arguments(Config, f"{file}:size=m", str, given)
    assert (place, rest) == (f"{file}:size=m,shape=b", (given[1],))
    assert overrides.load(Config, place, str, rest).phases[0].steps == 2
    with pytest.raises(ValueError, match=r"mine\.py, line 4: shape is 'c'; give one of a, b$"):
        overrides.move_arguments(Config, str(file), str, [Override("shape", "c")])
    with pytest.raises(ValueError, match=r"sets 'shape' twice$"):
        overrides.move_arguments(Config, f"{file}:shape=a", str, given)


def test_a_field_that_is_no_argument_is_refused_by_its_name(load, tmp_path):
    # A file may take any text, as first_phase.py takes a path: fields are fields there too.
    text = TEXTS[Config].replace("get_config()", "get_config(text='')")
    assert load(Config, ("optim.learning_rate", "0.5"), text=text).optim.learning_rate == 0.5
    for place in (tmp_path / "mine.py", tmp_path / "none.py"):
        given = (Override("shapes", "b"),)
        (tmp_path / "mine.py").write_text(SHAPED)
        assert overrides.move_arguments(Config, str(place), str, given) == (str(place), given)
    with pytest.raises(ValueError, match=r"shapes=b: there is no such field"):
        load(Config, ("shapes", "b"), text=SHAPED)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("size=a,tokens=5,size=b", "sets 'size' twice"),
        ("tokens=-5", "tokens is '-5'; it must be 0 or more"),
        ("tokens=1.5", "tokens is '1.5'; it must be a whole number"),
        ("share=nan", "share is 'nan'; it must be a finite number"),
    ],
)
def test_what_stands_after_the_colon_is_read_once_and_as_a_flag_is(text, words):
    defaults = {"size": ("a", "b"), "tokens": 7, "share": 0.5}
    with pytest.raises(ValueError, match=r"size|tokens|share") as refused:
        arguments(text, **defaults)
    assert words in str(refused.value)
    given = arguments("size=b,tokens=1e3", **defaults)
    assert given == {"size": "b", "tokens": 1000, "share": 0.5}


def test_phases_may_be_a_list_and_one_without_its_comma_is_named(load):
    listed = load(Config, text=settings(Config, "phases=[Phase(64, 10)]"))
    assert listed.phases == (Phase(64, 10),)
    later = settings(Config).replace(" return", "\n    a =")
    later += "    a.phases = (Phase(64, 10),) * 2\n    return a\n"
    phases = load(Config, ("phases[1].steps", "7"), text=later).phases
    assert phases == (Phase(64, 10), Phase(64, 7))
    with pytest.raises(ValueError, match=r"config\.phases is a ConfigDict; .*\(ENTRY,\)$"):
        load(Config, text=settings(Config, "phases=(Phase(64, 10))"))


def test_a_file_is_read_as_it_is_after_two_edits_within_a_second(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "mine.py"
    for steps in (10, 20):
        file.write_text(settings(Config, f"phases=(Phase(64, {steps}),)"))
        os.utime(file, (1, 1))
        assert overrides.load(Config, str(file), str, []).phases[0].steps == steps


def test_fields_of_phases_that_are_not_there(load):
    with pytest.raises(ValueError, match=r"phases\[0\].steps=5: this config has no phases,"):
        load(Config, ("phases[0].steps", "5"), text=settings(Config, "phases=()"))


@pytest.mark.parametrize(
    ("path", "instead"),
    [("phases[0].steps", "epochs"), ("eval.every_steps", "evaluations_per_epoch")],
)
def test_what_fine_tuning_fills_in_is_refused_with_what_it_follows_from(load, path, instead):
    with pytest.raises(ValueError, match=rf"no such field; set config\.{instead}"):
        load(FinetuneConfig, (path, "5"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n\ndef get_config(): raise RuntimeError('boom')\n", ", line 3: RuntimeError: boom"),
        ("def get_config(): raise ValueError('bad recipe')\n", ", line 1: bad recipe"),
        ("def helper(): {}['x']\ndef get_config():\n    helper()\n", ", line 1: KeyError: 'x'"),
        ("import no_such_module\n", ", line 1: ModuleNotFoundError: No module named"),
        ("\ndef get_config(:\n", ", line 2: not Python: "),
        ("import sys\nsys.exit(3)\n", ", line 2: SystemExit: 3"),
        ("get_config = 5\n", "it has no get_config()"),
        (
            f"{settings(Config)}get_config().optim.learning_rat = 1\n",
            'the config is locked. Did you mean "learning_rate" instead of "learning_rat"?',
        ),
        (
            "def get_config(a, b) -> int: pass\n",
            "get_config(a, b) does not fit: it is called with noth",
        ),
        ("def get_config(): return 5\n", "get_config() returned 5; it must return to_config_dict("),
        ("a = '\0'\n", "null bytes"),
    ],
)
def test_a_broken_config_file_is_named_with_its_line(load, tmp_path, text, words):
    with pytest.raises(ValueError, match=r"^--config=") as refused:
        load(Config, text=text)
    assert str(refused.value).startswith(f"--config={tmp_path}/mine.py")
    assert words in str(refused.value)


def test_a_line_is_named_of_a_file_by_any_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("\ndef get_config(): raise RuntimeError('boom')\n")
    with pytest.raises(ValueError, match=r"^--config=\./mine\.py, line 2: RuntimeError: boom$"):
        overrides.load(Config, "./mine.py", str, [])


@pytest.mark.parametrize(
    ("content", "path", "words"),
    [
        ("a=1", "optim.learning_rate", "config has no field a"),
        ("optim=None", "optim.learning_rate", "config.optim is None; it is a group"),
        ("phases=None", "phases[0].steps", "config.phases is a NoneType; it must be a tuple"),
        ("phases=ConfigDict()", "phases[0].steps", r"config.phases is a ConfigDict; .*\(ENTRY,\)"),
        ("phases=({},)", "phases[0].steps", r"config.phases\[0\] is {}; it is a group"),
        (
            "phases=(ConfigDict(dict(seq_len=8)),)",
            "seed",
            r"config.phases\[0\] has no steps, which",
        ),
    ],
)
def test_a_file_is_blamed_before_a_flag_that_it_has_no_place_for(load, content, path, words):
    text = f"from ml_collections import *\ndef get_config(): return ConfigDict(dict({content}))\n"
    with pytest.raises(ValueError, match=rf"^{words}"):
        load(Config, (path, "1"), text=text)


@pytest.mark.parametrize("content", ["", "optim=dict(learning_rate=required_placeholder(float))"])
def test_a_file_may_leave_out_what_a_flag_sets(load, content):
    fields = f"phases=(ConfigDict(dict(seq_len=8, steps=3)),), {content}"
    text = "from ml_collections.config_dict import *\ndef get_config(): return ConfigDict("
    text += f"dict({fields}))\n"
    config = load(Config, ("phases[-1].steps", "7"), ("optim.learning_rate", "1"), text=text)
    assert (config.phases[-1].steps, config.optim.learning_rate) == (7, 1)


IMPORTS = (
    "import numpy\n"
    "from ml_collections.config_dict import *\n"
    "from bert_jax.config import Config, Phase, to_config_dict\n"
)


@pytest.mark.parametrize(
    ("content", "given", "got"),
    [
        ("ConfigDict(dict(seed=required_placeholder(int)))", "seed", ("seed", 20)),
        ("ConfigDict(dict(seed=placeholder(int)))", "seed", ("seed", 20)),
        ("FrozenConfigDict(dict(seed=3))", "optim.beta1", ("optim.beta1", 20.0)),
        ("ConfigDict(dict(optim=dict(beta1=numpy.float64(0.5))))", "seed", ("optim.beta1", 0.5)),
        # Fine-tuning has its own defaults of a group, also where a file sets another field of it.
        ("ConfigDict(dict(optim=dict(beta1=0.5)))", "seed", ("optim.learning_rate", 5e-5)),
    ],
)
def test_a_partial_file_is_completed(load, content, given, got):
    text = f"{IMPORTS}def get_config(): return {content}\n"
    assert value(load(FinetuneConfig, (given, "20"), text=text), got[0]) == got[1]


def test_a_setting_that_refers_to_another_follows_its_flag(load):
    """Also in one of two phases that the file made as one object."""
    text = IMPORTS + "def get_config():\n    c = to_config_dict(Config()); "
    text += "phase = to_config_dict(Phase(64, 10)); c.phases = (phase, phase); "
    text += "c.checkpoint.every_steps = 100 // c.eval.get_ref('every_steps'); return c\n"
    given = ("eval.every_steps", "20"), ("phases[1].steps", "5")
    config = load(Config, *given, text=text)
    assert config.checkpoint.every_steps == 5
    assert [phase.steps for phase in config.phases] == [10, 5]
    with pytest.raises(ValueError, match=r"^config\.checkpoint\.every_steps has no value: .*zero"):
        load(Config, ("eval.every_steps", "0"), text=text)


def test_a_required_setting_without_its_flag_is_named(load):
    text = f"{IMPORTS}def get_config(): return ConfigDict(dict(seed=required_placeholder(int)))\n"
    with pytest.raises(ValueError, match=r"^config\.seed has no value: .*--config\.seed=VALUE"):
        load(Config, text=text)


@pytest.mark.parametrize(
    ("arguments", "wanted", "rest"),
    [
        (["--config.seed=5", "--workdir=w"], [("seed", "5")], ["--workdir=w"]),
        (["--config.seed", "5", "w"], [("seed", "5")], ["w"]),
        (["-config.seed", "-5"], [("seed", "-5")], []),
        (["--config.compute.rolled_layers", "w"], [("compute.rolled_layers", "true")], ["w"]),
        (["--config.compute.rolled_layers", "False"], [("compute.rolled_layers", "False")], []),
        (["--config.init=a=b"], [("init", "a=b")], []),
        (
            ["--config=f.py", "--", "--config.seed=5"],
            [],
            ["--config=f.py", "--", "--config.seed=5"],
        ),
    ],
)
def test_overrides_are_parted_from_other_flags(arguments, wanted, rest):
    given, others = overrides.take(arguments, Config)
    assert ([(one.path, one.text) for one in given], others) == (wanted, rest)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config.seed"], "--config.seed has no value; write --config.seed=VALUE"),
        (["--config.seed", "--workdir=w"], "--config.seed has no value"),
    ],
)
def test_an_override_without_a_value_is_refused(arguments, words):
    with pytest.raises(ValueError, match="--") as refused:
        overrides.take(arguments, Config)
    assert words in str(refused.value)


def test_the_last_of_two_overrides_holds(load):
    assert load(Config, ("seed", "1"), ("seed", "2")).seed == 2


@pytest.mark.parametrize(
    ("kind", "place", "words"),
    [
        (FinetuneConfig, "configs/tiny.py", r"of pre-training, for python -m bert_jax\.train;"),
        (
            Config,
            "configs/finetune/glue.py:task=rte",
            r"of fine-tuning, for .*\.finetune;",
        ),
    ],
)
def test_a_config_for_the_other_command_is_named_before_its_fields(kind, place, words):
    given = [Override("data.dir", "x"), Override("data.store", "x")]
    with pytest.raises(ValueError, match=words) as refused:
        overrides.load(kind, place, cli.find_config, given)
    assert kind.PURPOSE[2] in str(refused.value)
    other = Config if kind is FinetuneConfig else FinetuneConfig
    overrides.load(other, place, cli.find_config, [])


PHASES = (
    "phases=(Phase(64, 10), Phase(64, 10, restart_learning_rate=3e-3, masked_lm_prob=0.1), "
    "Phase(64, 10))"
)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([("optim.learning_rate", "5e-4")], ["phases[1].restart_learning_rate=0.003"]),
        ([("optim.learning_rate", "1"), ("phases[1].restart_learning_rate", "1")], []),
        ([("optim.learning_rate", "1"), ("phases[-2].restart_learning_rate", "1")], []),
        ([("optim.learning_rate", "1"), ("phases[1].restart_learning_rate", "0")], []),
        ([("optim.learning_rate", "0.003")], []),
        ([("data.masked_lm_prob", "0.3")], ["phases[1].masked_lm_prob=0.1"]),
        ([("optim.decay", "constant"), ("optim.warmup_steps", "1")], []),
    ],
)
def test_a_phase_that_keeps_its_own_setting_is_named(load, given, kept):
    config = load(Config, *given, text=settings(Config, PHASES))
    rows = overrides.find_kept_settings(config, [Override(*pair) for pair in given])
    assert [label for label, _ in rows] == ["! phases"] * len(kept)
    for (_, text), setting in zip(rows, kept, strict=True):
        path, value = given[0]
        assert f"config.{setting}" in text and f"config.{path} = {value}" in text
