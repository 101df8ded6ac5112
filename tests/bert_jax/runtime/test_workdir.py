"""The files of a run in a bucket: fetched at the start, published whole, never those of another."""

import contextlib
import pathlib
import sys
import types

import fsspec
import pytest

from bert_jax.runtime import workdir as workdir_lib
from bert_jax.runtime import workdir_lock
from bert_jax.runtime.workdir import (
    check_all_see,
    check_bucket,
    check_entries,
    check_folder,
    fetch_workdir,
    open_local_workdir,
    open_workdir,
)
from data_pipeline.io import Refused
from data_pipeline.io.bucket import Bucket
from tests.bert_jax import joined

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


@contextlib.contextmanager
def running(scratch, **texts):
    """A run that has published these files of its, until it ends."""
    with contextlib.closing(open_workdir(RUN, str(scratch), 0)) as run:
        if texts:
            write(run.home, **texts)
            run.publish()
        yield run


def ran(scratch, **texts):
    with running(scratch, **texts):
        pass


def test_links_out_of_a_home_are_not_published(memory, tmp_path):
    with running(tmp_path / "a") as run:
        (tmp_path / "secrets").mkdir()
        (tmp_path / "secrets" / "key").write_text("mine")
        write(run.home, config_json="{}", tensorboard__events="e")
        (run.home / "folder").symlink_to(tmp_path / "secrets")
        (run.home / "tensorboard" / "key").symlink_to(tmp_path / "secrets" / "key")
        run.publish()
    assert in_bucket(memory) == {"config.json": b"{}", "tensorboard/events": b"e"}
    (run.home / ".home").write_bytes(b"\xff\xfe")
    with running(tmp_path / "a") as again:
        assert not (again.home / "folder").exists() and (tmp_path / "secrets" / "key").exists()


def test_a_new_host_finds_the_files_of_the_run(memory, tmp_path):
    own = {"compiled__program": "x", "half_partial": "", "wandb__log": "of this host"}
    shared = {"config_json": "{}", "metrics_jsonl": "1\n", "tensorboard__events": "e"}
    with running(tmp_path / "a", **own, **shared) as first:
        write(first.home, metrics_jsonl="1\n2\n")
        first.publish()
    assert in_bucket(memory) == {
        "config.json": b"{}",
        "metrics.jsonl": b"1\n2\n",
        "tensorboard/events": b"e",
    }
    with running(tmp_path / "b") as second:
        assert second.home != first.home
        assert (second.home / "metrics.jsonl").read_text() == "1\n2\n"
        assert str(second.checkpoints).endswith("mine/checkpoints")
    (tmp_path / "c").mkdir()
    read = fetch_workdir(RUN, tmp_path / "c")
    assert {path.name for path in read.home.iterdir()} == {"config.json", "metrics.jsonl"}


def test_the_host_of_the_last_run_keeps_what_was_not_published(memory, tmp_path):
    with running(tmp_path, config_json="{}", metrics_jsonl="1\n", libraries_log="a") as run:
        write(run.home, metrics_jsonl="1\n2\n", libraries_log="a killed run's last words")
    with running(tmp_path) as again:
        assert (again.home / "metrics.jsonl").read_text() == "1\n2\n"
        again.publish()
    assert in_bucket(memory)["libraries.log"] == b"a killed run's last words"


def test_a_run_of_a_host_in_between_counts_as_the_last(memory, tmp_path):
    for host, text in (("a", "old"), ("b", "new")):
        ran(tmp_path / host, config_json="{}", metrics_jsonl=text, compiled__program=host)
    with running(tmp_path / "a") as again:
        assert (again.home / "metrics.jsonl").read_text() == "new"
        assert (again.home / "compiled" / "program").read_text() == "a"
    memory.rm("/runs", recursive=True)  # to start over
    with running(tmp_path / "a") as fresh:
        assert not (fresh.home / "config.json").exists()


def test_checkpoints_without_a_record_are_opened_to_resume_and_refused_to_readers(memory, tmp_path):
    memory.pipe_file("/runs/mine/checkpoints/3/commit_success.txt", b"")
    with pytest.raises(ValueError, match=r"^memory://runs/mine holds checkpoints but no run of"):
        fetch_workdir(RUN, tmp_path)
    with running(tmp_path / "a") as run:  # a receipt may have a copy of run.json
        assert not (run.home / "run.json").exists()


def test_a_file_too_large_for_one_of_a_run_is_refused_before_it_is_read(
    memory, tmp_path, monkeypatch
):
    monkeypatch.setattr("bert_jax.runtime.workdir.MAX_BYTES", 3)
    memory.pipe_file("/runs/mine/run.json", b"{}")
    memory.pipe_file("/runs/mine/corpus.tar", b"four")
    with pytest.raises(
        Refused, match=r"^memory://runs/mine/corpus\.tar has 4 bytes, and .* 3; move"
    ):
        fetch_workdir(RUN, tmp_path)


def test_scratch_in_a_home_that_nobody_knows_is_refused(memory):
    with pytest.raises(Refused, match=r"^--scratch is ~no\.body/a, .*; give a path without ~$"):
        open_workdir(RUN, "~no.body/a", 0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_folder_that_jax_cannot_open_is_refused_and_a_link_to_it_is_not(tmp_path, monkeypatch):
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    assert open_workdir(str(tmp_path / "link"), "", 0).home == tmp_path / "link"
    monkeypatch.chdir(folder)
    for place in (str(folder / "run"), "run"):
        with pytest.raises(Refused, match=r"^the workdir is /.*/caf\\xe9/run, .*; rename the fol"):
            open_workdir(place, "", 0)


def test_other_processes_fetch_and_publish_their_stacks_alone(memory, tmp_path):
    with running(tmp_path, config_json="{}") as first:
        other = open_workdir(RUN, str(tmp_path), 3)
        assert other.home.name == f"{first.home.name}.process-3"
        assert (other.home / "config.json").read_text() == "{}"
        (other.home / "config.json").write_text("changed")
        (other.home / "stacks-3.txt").write_text("where it was")
        other.publish()
        other.close()
    assert in_bucket(memory) == {"config.json": b"{}", "stacks-3.txt": b"where it was"}


def test_the_summary_of_a_run_that_goes_on_goes(memory, tmp_path):
    ran(tmp_path, summary_json="{}")
    with running(tmp_path) as again:
        (again.home / "summary.json").unlink()
        again.publish()
        assert in_bucket(memory) == {}
        write(again.home, summary_json="{}")
        again.publish()
    assert in_bucket(memory) == {"summary.json": b"{}"}
    with running(tmp_path) as longer:
        longer.publish()  # as a start does before the run deletes the summary
        (longer.home / "summary.json").unlink()
        longer.publish()
    assert in_bucket(memory) == {}


def test_a_reader_finds_the_null_threshold_of_a_run_in_a_bucket(memory, tmp_path):
    with running(tmp_path / "a") as run:
        (run.home / "predictions" / "dev").mkdir(parents=True)
        for name in ("null_threshold.json", "dev/nbest.json"):
            (run.home / "predictions" / name).write_text("{}")
        run.publish()
    (tmp_path / "b").mkdir()
    read = fetch_workdir(RUN, tmp_path / "b").home
    files = [str(path.relative_to(read)) for path in read.rglob("*") if path.is_file()]
    assert files == ["predictions/null_threshold.json"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ("pipe_file", "writing metrics.jsonl failed, the bucket does not"),
        ("cat_file", "reading lock failed, the bucket does not"),
        ("rm_file", None),  # the summary is deleted once
    ],
)
def test_a_bucket_that_is_late_is_waited_for_within_a_bound(
    memory, tmp_path, monkeypatch, request_, words
):
    monkeypatch.setattr(workdir_lib, "_PAUSE_SECS", 0.01)
    left, answer = [3], getattr(type(memory), request_)

    def failing(self, path, *rest, **how):
        if left[0] > 0 and (request_ != "pipe_file" or path.endswith("metrics.jsonl")):
            left[0] -= 1
            raise ConnectionResetError("503")
        return answer(self, path, *rest, **how)

    with running(tmp_path) as run:
        monkeypatch.setattr(type(memory), request_, failing)
        write(run.home, metrics_jsonl="1\n")
        run.publish()
        assert left == [0] and in_bucket(memory) == {"metrics.jsonl": b"1\n"}
        write(run.home, metrics_jsonl="1\n2\n")
        left[0] = 10**9
        end = pytest.raises(ConnectionError, match=words) if words else contextlib.nullcontext()
        with end:
            run.publish(patience_secs=0.05)
        left[0] = 0
        run.publish()
    assert in_bucket(memory) == {"metrics.jsonl": b"1\n2\n"}


@pytest.mark.parametrize("hosts", ["ab", "b"])
def test_a_fetch_that_was_cut_off_is_made_again(memory, tmp_path, monkeypatch, hosts):
    for host in hosts:
        ran(tmp_path / host, config_json="{}", metrics_jsonl=host)
    cat_file = type(memory).cat_file

    def cut_off(self, path, **how):
        if path.endswith("metrics.jsonl"):
            raise ConnectionResetError("cut off")
        return cat_file(self, path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "cat_file", cut_off)
        with pytest.raises(ConnectionError):
            open_workdir(RUN, str(tmp_path / "a"), 0)
    with running(tmp_path / "a") as again:
        assert (again.home / "metrics.jsonl").read_text() == "b"


def test_a_folder_is_its_own_workdir(tmp_path):
    run = open_local_workdir(tmp_path / "run")
    run.publish()
    assert not run.home.exists()
    run.claim(is_writer=False)
    assert list(run.home.iterdir()) == []
    run.claim(is_writer=True)
    assert [path.name for path in run.home.iterdir()] == ["lock"]
    assert open_workdir(str(tmp_path / "run"), "unused", 0).home == run.home


def test_a_folder_is_made_and_left_empty_and_refused_below_a_file(tmp_path):
    check_folder(tmp_path / "deep" / "run")
    assert list((tmp_path / "deep" / "run").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        check_folder(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("refused", "action"),
    [("write_bytes", "writing a file as a test"), ("unlink", "deleting a file")],
)
def test_what_a_folder_refuses_is_named(tmp_path, monkeypatch, refused, action):
    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(pathlib.Path, refused, refuse)
    words = f"^{tmp_path}: {action} failed, this user lacks the permission"
    with pytest.raises(OSError, match=words):
        check_folder(tmp_path)


def test_a_disk_that_gives_back_other_bytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pathlib.Path, "read_bytes", lambda self: b"zeros")
    with pytest.raises(OSError, match="a file read back is not what was written"):
        check_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_is_left_as_it_was():
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/runs/mine/config.json", b"{}")
    check_bucket(Bucket("memory://runs/mine"))
    assert memory.find("/runs/mine") == ["/runs/mine/config.json"]
    memory.rm("/runs", recursive=True)


CHECK = """
import pathlib
from bert_jax.runtime import workdir
workdir.SEEN_SECS = 0.3
folder = pathlib.Path(FOLDER)
workdir.check_all_see(folder / "shared", 20)
try:
    workdir.check_all_see(folder / str(number) / "run", 20)
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.fault(12, "a folder of its own for each process")
def test_a_folder_that_another_process_does_not_see_is_refused_on_all(tmp_path):
    ended = joined.run(CHECK.replace("FOLDER", repr(str(tmp_path))))
    assert [one.code for one in ended] == [0, 0], ended
    for number, one in enumerate(ended):
        said = one.out.splitlines()[-1]
        assert said.startswith(f"--workdir={tmp_path / str(number) / 'run'} is not the same folder")
        assert "process 1 (" in said and "cannot see what process 0 wrote there" in said
    # The folder that all see is there for whoever writes into it first.
    left = [path for path in tmp_path.rglob("*") if path.name != "0"]
    assert left == [tmp_path / "shared"]


def test_the_others_hear_at_once_that_process_0_cannot_write(tmp_path, monkeypatch):
    told = []

    def agree(name, value, limit_secs):
        told.append(value)
        return [value, ""]

    monkeypatch.setattr(workdir_lib.processes, "count", lambda: 2)
    monkeypatch.setattr(workdir_lib.processes, "agree", agree)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        check_all_see(tmp_path / "file" / "run", 20)
    assert len(told) == 1 and told[0].startswith("failed ") and "Not a directory" in told[0]


def test_a_folder_that_a_host_sees_after_a_minute_is_shared(tmp_path, monkeypatch):
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)

    def sleep(secs):
        clock.now += secs
        if clock.now > 60.0:  # for so long NFS may show a folder as absent
            (tmp_path / "run").mkdir(exist_ok=True)

    clock.sleep = sleep
    monkeypatch.setattr(workdir_lib, "time", clock)
    assert workdir_lib._appears(tmp_path / "run", workdir_lib.SEEN_SECS)


def test_one_process_writes_nothing(tmp_path):
    check_all_see(tmp_path / "run", 0.0)
    assert list(tmp_path.iterdir()) == []


FOLDERS = ("checkpoints", "checkpoints_damaged", "tensorboard", "compiled", "profile", "wandb")


@pytest.mark.parametrize("name", [*FOLDERS, "predictions", "run.json", "summary.json", "lock"])
def test_an_entry_of_the_wrong_kind_is_refused(tmp_path, name):
    entry, is_folder = tmp_path / name, "." not in name and name != "lock"
    right, wrong = (entry.mkdir, entry.touch) if is_folder else (entry.touch, entry.mkdir)
    right()
    check_entries(tmp_path)
    (entry.rmdir if is_folder else entry.unlink)()
    wrong()
    with pytest.raises(Refused, match=f"{entry} is no "):
        check_entries(tmp_path)
    (entry.unlink if is_folder else entry.rmdir)()
    entry.symlink_to(tmp_path / "nothing")
    with pytest.raises(Refused, match=f"{entry} is a link to nothing"):
        check_entries(tmp_path)


def test_a_link_to_a_folder_is_a_folder(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "disk")
    check_entries(tmp_path)
