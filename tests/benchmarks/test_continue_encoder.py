"""The task of the continued encoder is made from modules that no run reads."""

import csv
import json

from benchmarks import continue_encoder


def test_no_module_is_in_two_of_the_text_and_the_tables(tmp_path):
    documents = [
        {"title": f"{package}.m{number}", "text": f"{package} m{number} " * (20 - size)}
        for size, package in enumerate("abcdefghijkl")
        for number in range(9)
    ]
    documents += [{"title": "topic x.y", "text": "words of a topic " * 90}]
    source, field = tmp_path / "all.jsonl", tmp_path / "field.jsonl"
    source.write_text("".join(json.dumps(document) + "\n" for document in documents))
    packages = continue_encoder.split_documents(source, field, tmp_path / "task")
    assert packages == list("abcdefghij")
    parts = [{json.loads(line)["text"] for line in field.read_text().splitlines()}]
    for split in ("train", "dev"):
        with (tmp_path / "task" / f"{split}.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert {row["package"] for row in rows} == set(packages)
        parts.append({row["text"] for row in rows})
    assert sum(map(len, parts)) == len(set.union(*parts)) == len(documents)
    assert len(parts[1]) == len(parts[2]) == 23
