import pytest

from data_pipeline.cli.flags import FlagParser, boolean, check_range


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


def refuses(value):
    try:
        check_range("secs", value, 1, 3)
    except ValueError as error:
        return f"--secs is {value}; it must be from 1 to 3" in str(error)
    return False


def test_a_range_includes_its_ends():
    values = (0.99, 1, 1.5, 3, 3.01, float("nan"))
    assert [refuses(value) for value in values] == [True, False, False, False, True, True]
