"""The files of a run in a bucket: fetched at the start, published whole, never those of another."""

import contextlib
import pathlib

import fsspec
import pytest

from bert_jax import workdir as workdir_lib
from bert_jax import workdir_lock
from bert_jax.workdir import check_address, fetched, local, opened

RUN = "memory://runs/mine"


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(workdir_lock, "_LOOK_SECS", 0.01)
    monkeypatch.setattr(workdir_lib.epath, "Path", pathlib.PurePosixPath)  # knows no memory://
    files = fsspec.filesystem("memory")
    yield files
    if files.exists("/runs"):
        files.rm("/runs", recursive=True)


def in_bucket(memory):
    return {
        name.removeprefix("/runs/mine/"): memory.cat_file(name)
        for name in memory.find("/runs/mine")
        if not name.endswith("/lock")
    }


def write(home: pathlib.Path, **texts: str) -> None:
    for name, text in texts.items():
        path = home / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_links_out_of_a_home_are_not_published(memory, tmp_path):
    run = opened(RUN, str(tmp_path / "a"), 0)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("mine")
    write(run.home, config_json="{}", tensorboard__events="e")
    (run.home / "folder").symlink_to(tmp_path / "secrets")
    (run.home / "tensorboard" / "key").symlink_to(tmp_path / "secrets" / "key")
    run.publish()
    run.close()
    assert in_bucket(memory) == {"config.json": b"{}", "tensorboard/events": b"e"}
    (run.home / ".home").unlink()
    (run.home / ".home").write_bytes(b"\xff\xfe")
    again = opened(RUN, str(tmp_path / "a"), 0)
    assert not (again.home / "folder").exists() and (tmp_path / "secrets" / "key").exists()
    again.close()


def test_a_new_host_finds_the_files_of_the_run(memory, tmp_path):
    first = opened(RUN, str(tmp_path / "a"), 0)
    write(first.home, config_json="{}", metrics_jsonl="1\n", compiled__program="x", half_partial="")
    write(first.home, tensorboard__events="e", wandb__log="of this host")
    first.publish()
    write(first.home, metrics_jsonl="1\n2\n")
    first.publish()
    first.close()
    assert in_bucket(memory) == {
        "config.json": b"{}",
        "metrics.jsonl": b"1\n2\n",
        "tensorboard/events": b"e",
    }
    second = opened(RUN, str(tmp_path / "b"), 0)
    assert second.home != first.home
    assert (second.home / "metrics.jsonl").read_text() == "1\n2\n"
    assert str(second.checkpoints).endswith("mine/checkpoints")
    second.close()
    (tmp_path / "c").mkdir()
    read = fetched(RUN, tmp_path / "c")
    assert {path.name for path in read.home.iterdir()} == {"config.json", "metrics.jsonl"}


def test_the_host_of_the_last_run_keeps_what_was_not_published(memory, tmp_path):
    run = opened(RUN, str(tmp_path), 0)
    write(run.home, config_json="{}", metrics_jsonl="1\n", libraries_log="a")
    run.publish()
    write(run.home, metrics_jsonl="1\n2\n", libraries_log="a killed run's last words")
    run.close()
    again = opened(RUN, str(tmp_path), 0)
    assert (again.home / "metrics.jsonl").read_text() == "1\n2\n"
    again.publish()
    again.close()
    assert in_bucket(memory)["libraries.log"] == b"a killed run's last words"


def test_a_run_of_a_host_in_between_counts_as_the_last(memory, tmp_path):
    for host, text in (("a", "old"), ("b", "new")):
        run = opened(RUN, str(tmp_path / host), 0)
        write(run.home, config_json="{}", metrics_jsonl=text, compiled__program=host)
        run.publish()
        run.close()
    again = opened(RUN, str(tmp_path / "a"), 0)
    assert (again.home / "metrics.jsonl").read_text() == "new"
    assert (again.home / "compiled" / "program").read_text() == "a"
    again.close()
    memory.rm("/runs", recursive=True)  # to start over
    fresh = opened(RUN, str(tmp_path / "a"), 0)
    assert not (fresh.home / "config.json").exists()
    fresh.close()


def test_checkpoints_of_nobody_are_refused(memory, tmp_path):
    memory.pipe_file("/runs/mine/checkpoints/3/commit_success.txt", b"")
    with pytest.raises(ValueError, match=r"=memory://runs/mine holds checkpoints but no run of"):
        opened(RUN, str(tmp_path), 0)


def test_other_processes_fetch_and_publish_their_stacks_alone(memory, tmp_path):
    first = opened(RUN, str(tmp_path), 0)
    write(first.home, config_json="{}")
    first.publish()
    other = opened(RUN, str(tmp_path), 3)
    assert other.home.name == f"{first.home.name}.process-3"
    assert (other.home / "config.json").read_text() == "{}"
    (other.home / "config.json").write_text("changed")
    (other.home / "stacks-3.txt").write_text("where it was")
    other.publish()
    other.close()
    first.close()
    assert in_bucket(memory) == {"config.json": b"{}", "stacks-3.txt": b"where it was"}


def test_the_summary_of_a_run_that_goes_on_goes(memory, tmp_path):
    run = opened(RUN, str(tmp_path), 0)
    write(run.home, summary_json="{}")
    run.publish()
    run.close()
    again = opened(RUN, str(tmp_path), 0)
    (again.home / "summary.json").unlink()
    again.publish()
    assert in_bucket(memory) == {}
    write(again.home, summary_json="{}")
    again.publish()
    again.close()
    assert in_bucket(memory) == {"summary.json": b"{}"}


@pytest.fixture
def late(memory, monkeypatch):
    """The bucket answers 503 to so many writes of metrics.jsonl."""
    monkeypatch.setattr(workdir_lib, "_PAUSE_SECS", 0.01)
    left = [0]
    pipe_file = type(memory).pipe_file

    def failing(self, path, data, **how):
        if path.endswith("metrics.jsonl") and left[0] > 0:
            left[0] -= 1
            raise ConnectionResetError("503")
        return pipe_file(self, path, data, **how)

    monkeypatch.setattr(type(memory), "pipe_file", failing)
    return left


def test_a_bucket_that_is_late_is_waited_for_within_a_bound(late, memory, tmp_path):
    run = opened(RUN, str(tmp_path), 0)
    write(run.home, metrics_jsonl="1\n")
    late[0] = 3
    run.publish()
    assert in_bucket(memory) == {"metrics.jsonl": b"1\n"} and late[0] == 0
    write(run.home, metrics_jsonl="1\n2\n")
    late[0] = 10**9
    with pytest.raises(ConnectionError, match=r"writing metrics.jsonl failed, the bucket does not"):
        run.publish(patience_secs=0.05)
    late[0] = 0
    run.publish()
    run.close()
    assert in_bucket(memory) == {"metrics.jsonl": b"1\n2\n"}


@pytest.mark.parametrize("request_", ["cat_file", "rm_file"])  # of the lock, of the summary
def test_every_request_of_publishing_is_waited_for(memory, tmp_path, monkeypatch, request_):
    monkeypatch.setattr(workdir_lib, "_PAUSE_SECS", 0.01)
    run = opened(RUN, str(tmp_path), 0)
    write(run.home, config_json="{}")
    left, asked = [3], getattr(type(memory), request_)

    def failing(self, path, *rest, **how):
        if left[0] > 0:
            left[0] -= 1
            raise ConnectionResetError("503")
        return asked(self, path, *rest, **how)

    monkeypatch.setattr(type(memory), request_, failing)
    run.publish()
    assert left == [0] and in_bucket(memory) == {"config.json": b"{}"}
    left[0] = 10**9
    end = pytest.raises(ConnectionError) if request_ == "cat_file" else contextlib.nullcontext()
    with end:  # the summary is deleted once
        run.publish(patience_secs=0.05)
    left[0] = 0
    run.close()


@pytest.mark.parametrize("had_it_before", [True, False])
def test_a_fetch_that_was_cut_off_is_made_again(memory, tmp_path, monkeypatch, had_it_before):
    hosts = ("a", "b") if had_it_before else ("b",)
    for host in hosts:
        run = opened(RUN, str(tmp_path / host), 0)
        write(run.home, config_json="{}", metrics_jsonl=host)
        run.publish()
        run.close()
    cat_file = type(memory).cat_file

    def cut_off(self, path, **how):
        if path.endswith("metrics.jsonl"):
            raise ConnectionResetError("cut off")
        return cat_file(self, path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "cat_file", cut_off)
        with pytest.raises(ConnectionError):
            opened(RUN, str(tmp_path / "a"), 0)
    again = opened(RUN, str(tmp_path / "a"), 0)
    assert (again.home / "metrics.jsonl").read_text() == "b"
    again.close()


def test_a_folder_is_its_own_workdir(tmp_path):
    run = local(tmp_path / "run")
    run.publish()
    assert not run.home.exists()
    run.claim(is_writer=False)
    assert list(run.home.iterdir()) == []
    run.claim(is_writer=True)
    assert [path.name for path in run.home.iterdir()] == ["lock"]
    assert opened(str(tmp_path / "run"), "unused", 0).home == run.home


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("gs://runs/mine", None),
        ("gs://runs", "gs://BUCKET/PATH"),
        ("gs://runs/", "gs://BUCKET/PATH"),
        ("s3://runs/mine", "mount other storage"),
        (__file__, "is a file; give a new or an empty folder"),
    ],
)
def test_an_address_is_looked_at_before_anything_is_asked(address, words):
    expected = contextlib.nullcontext() if words is None else pytest.raises(ValueError, match=words)
    with expected:
        check_address(address)
