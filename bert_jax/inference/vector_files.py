"""Write vectors to a file, a group of rows at a time: npz, Parquet or Google's JSON lines.

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

from bert_jax.inference.hidden_states import Group, Layers
from data_pipeline.io import Refused

NPZ, PARQUET, JSONL = "npz", "parquet", "jsonl"
FORMATS = (NPZ, PARQUET, JSONL)
_DECIMALS = 6  # digits of a JSON number: extract_features.py@eedf5716ce
_TOKENS_AT_ONCE = 1 << 16

Write = Callable[[Group], None]


def choose_format(output: pathlib.Path) -> str:
    """Return the format of the output's extension.

    Raises:
      Refused: it is not a known format.
    """
    given = output.suffix.removeprefix(".").lower()
    if given in FORMATS:
        return given
    raise Refused(
        f"--output is {output}, which has no known extension; end it in one of {', '.join(FORMATS)}"
    )


@contextlib.contextmanager
def open_writer(
    path: pathlib.Path, kind: str, pieces: Sequence[str], layers: Layers, is_pooled: bool
) -> Iterator[Write]:
    """Yield a function that writes a group to a new file, which is complete after the block."""
    if kind == NPZ:
        with _open_npz(path, pieces, is_pooled) as write:
            yield write
    elif kind == PARQUET:
        with _open_parquet(path, pieces, layers, is_pooled) as write:
            yield write
    else:
        with open(path, "w", encoding="utf-8") as file:
            yield lambda group: file.writelines(_format_json(group, pieces, layers, is_pooled))


def _format_json(
    group: Group, pieces: Sequence[str], layers: Layers, is_pooled: bool
) -> Iterator[str]:
    """Yield a JSON line for each row, with Google's names: linex_index is its number, from 0."""
    for row in range(group.rows.examples):
        start, end = group.rows.offsets[row : row + 2]
        vectors = group.vectors[row : row + 1] if is_pooled else group.vectors[start:end]
        vectors = vectors.reshape(len(vectors), len(layers.numbers), -1)  # [T,K,D]
        by_layer = [
            [
                {"index": number, "values": values}
                for number, values in zip(layers.numbers, vector, strict=True)
            ]
            for vector in np.round(vectors.astype(np.float64), _DECIMALS).tolist()
        ]
        line: dict[str, Any] = {"linex_index": group.first_line + row}
        if is_pooled:
            line["layers"] = by_layer[0]
        else:
            tokens = [pieces[token] for token in group.rows.token_ids[start:end]]
            line["features"] = [
                {"token": token, "layers": token_layers}
                for token, token_layers in zip(tokens, by_layer, strict=True)
            ]
        yield json.dumps(line, ensure_ascii=False) + "\n"


@contextlib.contextmanager
def _open_parquet(
    path: pathlib.Path, pieces: Sequence[str], layers: Layers, is_pooled: bool
) -> Iterator[Write]:
    """Yield a function that writes a row for each line: line, tokens, vectors, or line, vector."""
    names = pa.array(pieces, pa.string())
    metadata = {"layers": ",".join(map(str, layers.numbers))}
    writers: list[pq.ParquetWriter] = []  # the width is known with the first group

    def write(group: Group) -> None:
        vectors = pa.array(group.vectors.ravel())
        for size in reversed(group.vectors.shape[1:]):  # T lists of D, or T lists of K lists of D
            vectors = pa.FixedSizeListArray.from_arrays(vectors, size)
        end = group.first_line + group.rows.examples
        columns = {"line": pa.array(range(group.first_line, end))}
        if is_pooled:
            columns["vector"] = vectors
        else:
            offsets = pa.array(group.rows.offsets, pa.int32())
            tokens = names.take(pa.array(group.rows.token_ids))
            columns["tokens"] = pa.ListArray.from_arrays(offsets, tokens)
            columns["vectors"] = pa.ListArray.from_arrays(offsets, vectors)
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


@contextlib.contextmanager
def _open_npz(path: pathlib.Path, pieces: Sequence[str], is_pooled: bool) -> Iterator[Write]:
    """Yield a function that collects groups; the npz file is written after the block.

    Until then vectors are in a temporary file; memory holds the group and four bytes per token.
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
            with _open_array(archive, "vectors", np.dtype(np.float32), (count, *dims)) as file:
                shutil.copyfileobj(spool, file, 1 << 20)
            if not is_pooled:
                _write_tokens(archive, token_ids, pieces, count)
                offsets = np.concatenate([[0], np.cumsum(lengths_N)]).astype(np.int64)
                with _open_array(archive, "offsets", offsets.dtype, offsets.shape) as file:
                    file.write(offsets.tobytes())


def _write_tokens(
    archive: zipfile.ZipFile, token_ids: Sequence[np.ndarray], pieces: Sequence[str], count: int
) -> None:
    """Write the text of all tokens, some at a time: NumPy gives each the size of the longest."""
    names = np.array(pieces)
    with _open_array(archive, "tokens", names.dtype, (count,)) as file:
        for group_ids in token_ids:
            for start in range(0, len(group_ids), _TOKENS_AT_ONCE):
                file.write(names[group_ids[start : start + _TOKENS_AT_ONCE]].tobytes())


def _open_array(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], dims: tuple[int, ...]
) -> IO[bytes]:
    """Open a new array of a npz file and write its header; the caller writes its numbers."""
    file = archive.open(f"{name}.npy", "w", force_zip64=True)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": dims}
    np.lib.format.write_array_header_1_0(file, header)
    return file
