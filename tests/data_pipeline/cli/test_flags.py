"""What a command line becomes: values of a dataclass, or a sentence that names the flag."""

import dataclasses
import os

import pytest

from data_pipeline.cli.flags import Command, Kinds, flag


class Dotted:
    """A flag --grid with parts, as --config has them."""

    def take(self, arguments):
        parts = [text for text in arguments if text.startswith("--grid.")]
        return parts, [text for text in arguments if text not in parts]

    def make(self, text, parts):
        return text, parts

    def suggest(self, name):
        return [f"--grid.{name}"] if name in ("width", "init") else []


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Nested flags."""

    multihost: bool = flag(False, "several processes", "processes")
    count: int | None = flag(None, "how many of 100%", "processes", minimum=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags of the command below."""

    checkpoint: str = flag("", "a model to read", metavar="CK", is_required=True)
    texts: tuple[str, ...] = flag((), "sentences", metavar="TEXT", is_positional=True)
    hosts: Hosts
    grid: object = flag(None, "a grid", with_parts=Dotted())
    top: int = flag(5, "guesses of a mask", minimum=1)
    secs: float = flag(1.5, "time to take", above=0, unit="s")
    kind: str | None = flag(None, "of text", choices=("a", "b"))
    input: str = flag("", "files", metavar="GLOB[,GLOB]")
    lowercase: bool = flag(True, "lowercase the text")
    task: tuple[str, ...] = flag((), "may be repeated")


COMMAND = Command("some.command", "Do it.\n\n  as   laid out\n\nAll.", Flags, "python -m some.x")
GIVEN = ("--checkpoint=ck",)
HOME = os.path.expanduser("~").rstrip("/")


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ((), {"checkpoint": "ck", "top": 5, "texts": (), "kind": None, "grid": ("", [])}),
        (("--top", "1e1", "--top=1_000"), {"top": 1000}),
        (("--secs=2",), {"secs": 2.0}),
        (("--kind=b",), {"kind": "b"}),
        (("a b", "--top", "3", "c"), {"texts": ("a b", "c"), "top": 3}),
        (("a", "--", "--top=3", "--multihost"), {"texts": ("a", "--top=3", "--multihost")}),
        (("--task=x=1", "--task", "y"), {"task": ("x=1", "y")}),
        (("--multihost", "a"), {"hosts": Hosts(True), "texts": ("a",)}),
        (("--multihost=FALSE", "--count=3"), {"hosts": Hosts(False, 3)}),
        (("--multihost", "false", "a"), {"hosts": Hosts(False), "texts": ("a",)}),
        (("--checkpoint=", "--checkpoint", "x y"), {"checkpoint": "x y"}),
        (("--checkpoint=~/x", "~/y"), {"checkpoint": f"{HOME}/x", "texts": ("~/y",)}),
        (("--input=a,b", "--input", "a,b"), {"input": "a,b"}),
        (("--grid=g", "--grid.width=3"), {"grid": ("g", ["--grid.width=3"])}),
    ],
)
def test_values_are_read(arguments, values):
    flags = COMMAND.read((*GIVEN, *arguments))
    assert {name: getattr(flags, name) for name in values} == values


def test_the_home_folder_and_a_file_address_are_filled_in_where_a_place_begins(monkeypatch):
    monkeypatch.setenv("HOME", "/me")
    places = {
        "~/a": "/me/a",
        "hf:~/a,~/b": "hf:/me/a,/me/b",
        "a~/b": "a~/b",
        "file:///a,hf:file://localhost/b": "/a,hf:/b",
        "file://a": "file://a",
        "a/file:///b": "a/file:///b",
    }
    for text, place in places.items():
        assert COMMAND.read([f"--checkpoint={text}"]).checkpoint == place
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # no HOME, an unknown user
    with pytest.raises(ValueError, match="'hf:~/a'; the home folder is not known here"):
        COMMAND.read(["--checkpoint=hf:~/a"])


@pytest.mark.parametrize(
    ("arguments", "key", "words"),
    [
        (("--checkpoint=",), "--checkpoint", "is missing: a model to read"),
        (
            ("--input=a", "b", "--input=c"),
            "--input",
            "is given 2 times; give it once, as a list with commas: --input=a,c",
        ),
        (("--top=x",), "--top", "is 'x'; it must be a whole number"),
        (("--top=0",), "--top", "is 0; it must be 1 or more"),
        (("--secs=nan",), "--secs", "a finite number"),
        (("--multihost=maybe",), "--multihost", "true or false"),
        (("--count", "-1"), "--count", "1 or more"),
        (("--kind=c",), "--kind", "one of a, b"),
        (("--top",), "--top", "--top=VALUE"),
        (("--tpo=3",), "--tpo=3", "--top?"),
        (("--workdir=runs/x",), "--workdir", "--checkpoint or --grid.init?"),
        (("--width=3",), "--width", "--grid.width?"),
        (("--zzz", "--yyy"), "--zzz", "--help"),
        (("--config.seed=3",), "--config.seed=3", "takes no --config"),
    ],
)
def test_a_mistake_names_its_flag_and_a_way_out(arguments, key, words):
    with pytest.raises(ValueError, match=r"^--") as error:
        COMMAND.read((*GIVEN, *arguments))
    assert str(error.value).startswith(key)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_help_of_all_kinds_and_a_long_usage_have_the_width_of_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "44")
    monkeypatch.setattr("sys.argv", ["command", "--help"])
    text = Kinds("All of them. " * 9, {"": COMMAND}).format_help()
    assert max(map(len, text.splitlines())) <= 44
    assert (
        "\n\nusage: python -m some.command\n    --checkpoint=CK [TEXT ...]\n    [flags]\n" in text
    )


def test_a_command_without_positional_arguments_refuses_them():
    with pytest.raises(ValueError, match=r"^'stray' is not a flag; put quotes around "):
        Command("some.command", "", Hosts, "python").read(["stray"])


def test_help_has_sections_defaults_an_example_and_the_width_of_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = COMMAND.format_help()
    assert max(map(len, text.splitlines())) <= 60
    headings = [line for line in text.splitlines() if line.endswith(":")]
    assert headings == ["arguments:", "flags:", "processes:", "example:"]
    assert "usage: python -m some.command --checkpoint=CK [TEXT ...]\n    [flags]\n" in text
    assert "\n\n  as   laid out\n\n" in text
    words = " ".join(text.split())
    assert "--top=N guesses of a mask; 1 or more; default 5" in words
    assert "--multihost several processes; default false" in words
    assert "--lowercase=BOOL lowercase the text; default true" in words
    assert "how many of 100%; 1 or more" in words


def test_the_first_argument_chooses_a_kind(monkeypatch):
    small = Command("some.command small", "Small.", Hosts, "python -m some.command small")
    kinds = Kinds("About all.", {"": COMMAND, "small": small})
    assert kinds.read(["small", "--count=3"]) == Hosts(False, 3)
    assert kinds.read(GIVEN).checkpoint == "ck"
    for arguments in (["smal"], []):
        commands = {"": COMMAND, "small": small} if arguments else {"small": small}
        with pytest.raises(ValueError, match="it must be one of small"):
            Kinds(None, commands).read(arguments)
    monkeypatch.setattr("sys.argv", ["x", "small", "--help"])
    assert kinds.format_help() == small.format_help()
    monkeypatch.setattr("sys.argv", ["x", "--help"])
    assert kinds.format_help().startswith("About all.")
    assert small.format_help() in kinds.format_help()
