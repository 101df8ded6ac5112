"""The battery: what can break a run, and what must hold then. Its cases name their row by number.

    @pytest.mark.fault(5, "an empty folder named as a later step")

on a test anywhere under tests/ makes it a case of row 5 of the table of tested faults in
docs/design/reliability.md; the words say how the fault is caused.
"""

import re

from tests.faults.runs import ROOT

_PAGE = (ROOT / "docs" / "design" / "reliability.md").read_text(encoding="utf-8")
# The number of a row -> the kind of fault, and what must hold.
ROWS = {
    int(number): (fault, must_hold)
    for number, fault, must_hold in re.findall(
        r"^\| (\d+) \| (.+?) \| (.+?) \|", _PAGE, re.MULTILINE
    )
}
