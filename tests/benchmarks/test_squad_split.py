"""Files of SQuAD split by paragraph: no text on both sides, nothing twice."""

import json
import sys

from benchmarks import squad_split
from bert_jax.tasks.squad.data import Paragraph, read_squad
from tests.bert_jax.tasks.squad_samples import question, written


def test_no_text_is_on_both_sides_and_no_question_asked_twice(tmp_path, monkeypatch, capsys):
    texts = [f"Number {number} is here." for number in range(40)]
    one = [Paragraph(text, (question(f"a{text}", "Where?", ("here", 12)),)) for text in texts]
    # The same texts in other letters, the same question, and one without answer.
    other = [
        Paragraph(text, (question(f"b{text}", "where"), question(f"c{text}", "Why?")))
        for text in texts
    ]
    spaced = [Paragraph(texts[0].replace(" ", "  "), (question("d", "Who?"),))]
    files = [
        written(tmp_path / "one.json", one),
        written(tmp_path / "other.json", [*other, *spaced], "v2.0"),
    ]
    arguments = ["squad_split", f"--output={tmp_path}", "--dev_share=0.3", *map(str, files)]
    monkeypatch.setattr(sys, "argv", arguments)
    squad_split.main()
    contexts = {}
    for version, asked in (("1.1", 1), ("2.0", 2)):
        for split in ("train", "dev"):
            read = read_squad(tmp_path / f"{split}-v{version}.json")
            contexts[split, version] = {paragraph.context for paragraph in read.paragraphs}
            assert {len(paragraph.questions) for paragraph in read.paragraphs} == {asked}
            assert read.has_unanswerable == (version == "2.0")
        train, dev = contexts["train", version], contexts["dev", version]
        assert train | dev == set(texts) and not train & dev
        assert 4 <= len(dev) <= 20
    assert contexts["dev", "1.1"] == contexts["dev", "2.0"]
    assert json.loads((tmp_path / "dev-v2.0.json").read_text())["version"] == "2.0"
    assert capsys.readouterr().out.count("questions about") == 4
