"""Fixtures of the tests of launch/: a cluster.env, and a gcloud that only says what it got."""

import os

import pytest

from tests.launch.scripts import VALUES, write_command


@pytest.fixture(autouse=True)
def quick_python(monkeypatch):
    """Stand in for the Python that resolves the config, which takes seconds; it accepts all."""
    monkeypatch.setenv("BERT_JAX_PYTHON", "true")


@pytest.fixture
def cluster(tmp_path):
    """A function that writes a cluster.env, complete but for what it is given."""

    def write(extra: str = "", **changed: str) -> str:
        path = tmp_path / "cluster.env"
        lines = [f"{name}={value}" for name, value in (VALUES | changed).items()]
        path.write_text("# a comment\n\n" + "\n".join([*lines, extra]))
        return f"--cluster={path}"

    return write


@pytest.fixture
def path_with_gcloud(tmp_path):
    """A function that gives a PATH whose gcloud prints its arguments and ends as it is told.

    ACCOUNT and TOKEN_FILE in its environment are who is logged in, and auth/access_token_file.
    QUEUED is the state and the mark of the queued resource; of several with commas between them
    each question takes one, and ERROR is an answer that fails. STORED is the exit code of storage.
    """

    def write(exit_code: int = 0) -> str:
        write_command(
            tmp_path / "bin" / "gcloud",
            "case $1 in",
            '    auth) echo "${ACCOUNT-me@example.com}" ;;',
            '    config) [[ $3 != auth/access_token_file ]] || echo "${TOKEN_FILE-}" ;;',
            '    storage) exit "${STORED-0}" ;;',
            "    compute)",
            "        [[ $4 != describe ]] || {",
            f"            asked={tmp_path}/asked",
            '            echo >>"$asked"',
            '            IFS=, read -ra answers <<<"${QUEUED-ACTIVE bert_jax}"',
            '            at=$(($(wc -l <"$asked") - 1))',
            "            answer=${answers[at < ${#answers[@]} ? at : -1]}",
            '            [[ $answer != ERROR ]] || { echo "$ERROR" >&2; exit 1; }',
            '            echo "$answer"',
            "            exit 0",
            "        }",
            f'        printf "%s\\n" "$@" && exit {exit_code} ;;',
            "esac",
        )
        return f"{tmp_path / 'bin'}:{os.environ['PATH']}"

    return write
