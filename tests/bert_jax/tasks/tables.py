"""Write tables in each format that tasks read."""

import csv
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq


def write_table(path: pathlib.Path, rows: list[dict[str, object]]) -> pathlib.Path:
    """Write rows in the format of the path's extension; a tsv has no quotes."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        lines = [list(rows[0]), *(row.values() for row in rows)]
        path.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
    return path
