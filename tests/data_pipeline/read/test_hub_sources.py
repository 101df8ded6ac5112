"""Input from Hugging Face's Hub, by a stand-in for its file system."""

import pathlib

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from data_pipeline.io import Refused, address
from data_pipeline.read.documents import read_documents
from data_pipeline.read.options import TextOptions
from data_pipeline.read.sources import find_sources

PLACE = "hf://datasets/owner/name"


class GatedRepoError(Exception):
    pass


class OfflineModeIsEnabled(ConnectionError):
    pass


class HubError(OSError):
    def __init__(self, status: int) -> None:
        super().__init__(f"{status} Client Error")
        self.status = status


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Make hf:// a folder whose requests raise `hub.error`, if there is one."""

    class Hub(DirFileSystem):
        error: Exception | None = None

        def unstrip_protocol(self, name: str) -> str:
            return f"hf://{name}"

        def glob(self, path: str, **options: object) -> object:
            if self.error:
                raise self.error
            return super().glob(path, **options)

    files = Hub(str(tmp_path), fsspec.filesystem("file"))
    monkeypatch.setattr(
        address.fsspec.core, "url_to_fs", lambda url: (files, url.removeprefix("hf://"))
    )
    (tmp_path / "datasets" / "owner" / "name").mkdir(parents=True)
    return files


def test_files_of_a_data_set_are_read(hub, tmp_path):
    folder = pathlib.Path(tmp_path, "datasets/owner/name")
    pq.write_table(pa.table({"text": ["One.", "Two."]}), folder / "a.parquet")
    (folder / "b.jsonl").write_text('{"text": "Three."}\n')
    sources = find_sources(f"{PLACE}/*", TextOptions())
    assert [source.address for source in sources] == [f"{PLACE}/a.parquet", f"{PLACE}/b.jsonl"]
    texts = [text for source in sources for text in read_documents(source, TextOptions())]
    assert texts == [["One."], ["Two."], ["Three."]]
    with pytest.raises(Refused, match=r"matches no file that the Hub shows .*hf auth login"):
        find_sources(f"{PLACE}/*.csv", TextOptions())


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (GatedRepoError("403"), PermissionError, "gated or private.*hf auth login"),
        (HubError(401), PermissionError, "gated or private.*datasets/owner/name,"),
        (HubError(404), FileNotFoundError, "no such data set or file"),
        (FileNotFoundError("x"), FileNotFoundError, "no such data set or file"),
        (HubError(503), ConnectionError, r"status\.huggingface\.co"),
        (OfflineModeIsEnabled("offline mode"), ConnectionError, "HF_HUB_OFFLINE"),
    ],
)
def test_a_failure_of_the_hub_is_worded_for_the_hub(hub, error, kind, words):
    hub.error = error
    with pytest.raises(kind, match=words) as raised:
        find_sources(f"{PLACE}/*", TextOptions())
    assert "gcloud" not in str(raised.value) and "bucket" not in str(raised.value)


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    def fail(url: str) -> None:
        raise ImportError("Install huggingface_hub to access HfFileSystem")

    monkeypatch.setattr(address.fsspec.core, "url_to_fs", fail)
    with pytest.raises(Refused, match=r"\[hub\]"):
        find_sources(f"{PLACE}/*", TextOptions())
