"""The notebooks of examples/: they hold the outputs of a run from top to bottom, and run again."""

import base64
import json
import re
import shlex

import pytest

from tests.docs import notebooks, pages
from tests.docs.test_language import MAX_COLUMNS, list_faults
from tests.docs.test_pages import read_module_flags

MAX_PNG_BYTES, MAX_NOTEBOOK_BYTES, MAX_LINES = 60_000, 200_000, 100
# Folders of a machine: a user's, a temporary one, an environment.
MACHINE = re.compile(r"/(?:home|root|Users|tmp|work|opt|usr|var|mnt)/|site-packages|[A-Z]:\\\\")
NAMES = pytest.mark.parametrize("name", notebooks.NAMES)


def read(name):
    return json.loads(notebooks.path_of(name).read_text("utf-8"))


def code_cells(name):
    return [cell for cell in read(name)["cells"] if cell["cell_type"] == "code"]


def source_of(cell):
    return "".join(cell["source"])


def test_every_example_is_listed():
    files = {path.name for path in notebooks.FOLDER.iterdir() if not path.name.startswith(".")}
    assert files == {f"{name}.ipynb" for name in notebooks.NAMES}


@NAMES
def test_a_notebook_is_valid(name):
    nbformat = pytest.importorskip("nbformat", reason="needs the extra [notebooks]: nbformat")
    nbformat.validate(nbformat.read(notebooks.path_of(name), as_version=4))


@NAMES
def test_every_cell_has_run_in_order_without_an_error(name):
    cells = code_cells(name)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data"}
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}  # no warnings


@NAMES
def test_outputs_are_short_plain_and_of_no_machine(name):
    text = notebooks.path_of(name).read_text("utf-8")
    assert len(text) < MAX_NOTEBOOK_BYTES
    for cell in code_cells(name):
        printed = "".join("".join(output.get("text", "")) for output in cell["outputs"])
        assert not re.search(r"[\x00-\x08\x0b-\x1f]", printed), source_of(cell)
        assert not MACHINE.search(printed), source_of(cell)
        assert len(printed.splitlines()) <= MAX_LINES, source_of(cell)
        for output in cell["outputs"]:
            png = output.get("data", {}).get("image/png", "")
            assert len(base64.b64decode(png)) < MAX_PNG_BYTES


@NAMES
def test_the_commands_of_a_notebook_take_their_flags(name, tmp_path, monkeypatch):
    (tmp_path / "configs").symlink_to(pages.ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    modules = set()
    for cell in code_cells(name):
        magic, _, text = source_of(cell).partition("\n")
        if magic.startswith("%%writefile "):  # a config, which a later command reads
            path = tmp_path / magic.partition(" ")[2]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if magic == "%%bash":
            assert max(map(len, text.splitlines())) <= MAX_COLUMNS
            for command in re.findall(r"python -m ((?:.*\\\n)*.*)", text):
                module, *flags = shlex.split(command.replace("\\\n", " ").replace("$", ""))
                read_module_flags(module, *flags)
                modules.add(module)
    assert len(modules) > 3


@NAMES
def test_the_words_of_a_notebook_are_plain_and_its_links_lead_somewhere(name):
    cells = [cell for cell in read(name)["cells"] if cell["cell_type"] == "markdown"]
    text = "\n\n".join(map(source_of, cells))
    assert list_faults(" ".join(text.split())) == []
    for link in pages.links_in(text):
        assert (notebooks.FOLDER / link).exists(), link


@pytest.mark.parametrize(
    ("stored", "rerun", "version", "agrees"),
    [
        ("loss 4.24, 1,024 rows", "loss 4.31, 1,001 rows", "3.11.7", True),
        ("loss 4.24", "loss 6.36", "3.11.7", False),
        ("loss 4.24", "loss 6.36", "3.12.1", True),
        ("differ by 0.0e+00 at most", "differ by 1.2e-07 at most", "3.11.7", True),
        ("loss 4.24", "error 4.24", "3.12.1", False),
        ("step 27 of 844", "step 27 of", "3.12.1", False),
        ("took 24.2 s with 2 processes", "took 1.5 s with 16 processes", "3.11.7", True),
        ("480 seq/s 2:05 left", "1,490 seq/s 11:05 left", "3.11.7", True),
        ("STORE (31aabef3f5f7)\n", "STORE\n(0123456789ab)", "3.11.7", True),
    ],
)
def test_outputs_agree_but_for_times_and_small_differences(stored, rerun, version, agrees):
    nbformat = pytest.importorskip("nbformat", reason="needs the extra [notebooks]: nbformat")

    def print_in_a_notebook(text, version):
        output = nbformat.v4.new_output("stream", name="stdout", text=text)
        cell = nbformat.v4.new_code_cell("print()", outputs=[output])
        python = {"name": "python", "version": version}
        return nbformat.v4.new_notebook(cells=[cell], metadata={"language_info": python})

    pair = print_in_a_notebook(stored, "3.11.7"), print_in_a_notebook(rerun, version)
    assert (notebooks.list_differences(*pair) == []) == agrees


@pytest.mark.long
def test_the_notebooks_print_what_they_hold_when_they_run_again(tmp_path):
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package, reason=f"needs the extra [notebooks]: {package}")
    import nbformat

    for name in notebooks.NAMES:
        stored = nbformat.read(notebooks.path_of(name), as_version=4)
        assert notebooks.list_differences(stored, notebooks.run(name, tmp_path)) == []
