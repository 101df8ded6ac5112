"""Vectors to files, a group of rows at a time: NumPy's npz, Parquet, Google's JSON lines.

Dimensions: N lines, T tokens, K layers, D width, R rows of a group.
"""

import contextlib
import json
import pathlib
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bert_jax.feature_vectors import Group, Layers

NPZ, PARQUET, JSONL = "npz", "parquet", "jsonl"
FORMATS = (NPZ, PARQUET, JSONL)
_DECIMALS = 6  # of a number in JSON, as in extract_features.py@eedf5716ce
_TOKENS_AT_ONCE = 1 << 16

Write = Callable[[Group], None]


def format_of(output: pathlib.Path, name: str) -> str:
    """The format that is asked for, or that the output's name ends in.

    Raises:
      ValueError: neither says one that is written.
    """
    given = name or output.suffix.removeprefix(".").lower()
    if given in FORMATS:
        return given
    said = f"--format is {name!r}" if name else f"--output is {output}"
    raise ValueError(
        f"{said}, which names no format that is written; they are {', '.join(FORMATS)}: let "
        "--output end in one, or give it as --format"
    )


@contextlib.contextmanager
def writing(
    path: pathlib.Path, kind: str, pieces: Sequence[str], layers: Layers, is_pooled: bool
) -> Iterator[Write]:
    """Yield what writes group after group into a new file, which is whole when the block ends."""
    if kind == NPZ:
        with _npz(path, pieces, is_pooled) as write:
            yield write
    elif kind == PARQUET:
        with _parquet(path, pieces, layers, is_pooled) as write:
            yield write
    else:
        with open(path, "w", encoding="utf-8") as file:
            yield lambda group: file.writelines(_json_lines(group, pieces, layers, is_pooled))


def _json_lines(
    group: Group, pieces: Sequence[str], layers: Layers, is_pooled: bool
) -> Iterator[str]:
    """A line a row, with Google's names: linex_index is the line's number, from 0."""
    for row in range(group.rows.examples):
        start, end = group.rows.offsets[row : row + 2]
        vectors = group.vectors[row : row + 1] if is_pooled else group.vectors[start:end]
        rounded = np.round(vectors.astype(np.float64), _DECIMALS).tolist()
        found = [
            [
                {"index": number, "values": values}
                for number, values in zip(
                    layers.numbers, [of_one] if layers.is_one else of_one, strict=True
                )
            ]
            for of_one in rounded
        ]
        line: dict[str, Any] = {"linex_index": group.first_line + row}
        if is_pooled:
            line["layers"] = found[0]
        else:
            tokens = [pieces[token] for token in group.rows.token_ids[start:end]]
            line["features"] = [
                {"token": token, "layers": of_token}
                for token, of_token in zip(tokens, found, strict=True)
            ]
        yield json.dumps(line, ensure_ascii=False) + "\n"


@contextlib.contextmanager
def _parquet(
    path: pathlib.Path, pieces: Sequence[str], layers: Layers, is_pooled: bool
) -> Iterator[Write]:
    """A row a line and a row group a group: line, tokens and vectors, or line and vector."""
    names = pa.array(pieces, pa.string())
    metadata = {"layers": ",".join(map(str, layers.numbers))}
    writers: list[pq.ParquetWriter] = []  # the width is known with the first group

    def write(group: Group) -> None:
        lines = pa.array(range(group.first_line, group.first_line + group.rows.examples))
        offsets = pa.array(group.rows.offsets, pa.int32())
        vectors = _nested(group.vectors)
        if is_pooled:
            columns = {"line": lines, "vector": vectors}
        else:
            tokens = names.take(pa.array(group.rows.token_ids))
            columns = {
                "line": lines,
                "tokens": pa.ListArray.from_arrays(offsets, tokens),
                "vectors": pa.ListArray.from_arrays(offsets, vectors),
            }
        table = pa.table(columns).replace_schema_metadata(metadata)
        if not writers:
            # Neither dictionaries nor compression make floats smaller.
            writers.append(
                pq.ParquetWriter(path, table.schema, use_dictionary=False, compression="none")
            )
        writers[0].write_table(table, row_group_size=max(1, table.num_rows))

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()


def _nested(vectors: np.ndarray) -> pa.Array:
    """float32[T,D] as T lists of D, float32[T,K,D] as T lists of K lists of D."""
    nested = pa.array(vectors.ravel())
    for size in reversed(vectors.shape[1:]):
        nested = pa.FixedSizeListArray.from_arrays(nested, size)
    return nested


@contextlib.contextmanager
def _npz(path: pathlib.Path, pieces: Sequence[str], is_pooled: bool) -> Iterator[Write]:
    """Arrays in a zip, written at the end: until then vectors lie in a file without a name.

    Memory holds four bytes a token beside the group.
    """
    token_ids: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    dims: list[int] = []
    with tempfile.TemporaryFile(dir=path.parent) as spool:

        def write(group: Group) -> None:
            spool.write(np.ascontiguousarray(group.vectors).data)
            token_ids.append(group.rows.token_ids.copy())
            lengths.append(np.diff(group.rows.offsets))
            dims[:] = group.vectors.shape[1:]

        yield write
        lengths_N = np.concatenate([np.zeros(0, np.int64), *lengths])
        count = len(lengths_N) if is_pooled else int(lengths_N.sum())
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            spool.seek(0)
            with _array(archive, "vectors", np.dtype(np.float32), (count, *dims)) as file:
                shutil.copyfileobj(spool, file, 1 << 20)
            if not is_pooled:
                _write_tokens(archive, token_ids, pieces, count)
                offsets = np.concatenate([[0], np.cumsum(lengths_N)]).astype(np.int64)
                with _array(archive, "offsets", offsets.dtype, offsets.shape) as file:
                    file.write(offsets.tobytes())


def _write_tokens(
    archive: zipfile.ZipFile, token_ids: Sequence[np.ndarray], pieces: Sequence[str], count: int
) -> None:
    """The pieces of all tokens; a vocabulary may be long, and so may be its longest piece."""
    names = np.array(pieces)
    with _array(archive, "tokens", names.dtype, (count,)) as file:
        for of_group in token_ids:
            for start in range(0, len(of_group), _TOKENS_AT_ONCE):
                file.write(names[of_group[start : start + _TOKENS_AT_ONCE]].tobytes())


def _array(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], dims: tuple[int, ...]
) -> IO[bytes]:
    """A new array of a npz, its header written; its numbers are to follow."""
    file = archive.open(f"{name}.npy", "w", force_zip64=True)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": dims}
    np.lib.format.write_array_header_1_0(file, header)
    return file
