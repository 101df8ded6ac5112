import pytest

from data_pipeline.cli.flags import FlagParser, boolean


def parser():
    made = FlagParser(prog="python -m data_pipeline.x")
    made.add_argument("--shards", type=int, default=1)
    made.add_argument("--exact", type=boolean, default=False)
    return made


def test_values_are_read():
    values = parser().parse_args(["--shards=3", "--exact=True"])
    assert (values.shards, values.exact) == (3, True)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--shard=3", "'--shard=3' is not a flag of python -m data_pipeline.x; did you mean"),
        ("--zzz", "flags are --shards, --exact"),
        (
            "--shards=three",
            "--shards is 'three'; it must be a whole number; see python -m data_pipeline.x --help",
        ),
        ("--exact=1", "'1' is neither true nor false"),
    ],
)
def test_a_mistake_is_one_sentence(argument, words):
    with pytest.raises(ValueError) as error:
        parser().parse_args([argument])
    assert words in str(error.value) and "\n" not in str(error.value)
