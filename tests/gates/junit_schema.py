"""What the usual JUnit schema asks of a report (the one of Ant's tasks, which CI systems read), as checks."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

SUITE = {"package", "id", "name", "timestamp", "hostname", "tests", "failures", "errors", "time"}
CHILDREN = re.compile(r"properties (testcase )*system-out system-err $")
OUTCOMES = {"skipped", "error", "failure"}


def validated(text: str) -> ET.Element:
    """The one suite of a report that keeps to the schema."""
    root = ET.fromstring(text)  # refuses what XML forbids
    assert root.tag == "testsuites"
    (suite,) = root
    assert SUITE <= set(suite.attrib) <= SUITE | {"skipped"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
    assert CHILDREN.fullmatch("".join(f"{child.tag} " for child in suite))
    assert all(set(one.attrib) == {"name", "value"} for one in suite.find("properties"))
    cases = suite.findall("testcase")
    for case in cases:
        assert set(case.attrib) >= {"name", "classname", "time"}
        assert [child.tag for child in case if child.tag in OUTCOMES] == [child.tag for child in case]
        assert len(case) <= 1
        assert all(child.tag == "skipped" or "type" in child.attrib for child in case)
    for name, tag in {"failures": "failure", "errors": "error", "skipped": "skipped"}.items():
        assert int(suite.attrib[name]) == sum(case.find(tag) is not None for case in cases)
    assert int(suite.attrib["tests"]) == len(cases)
    assert float(suite.attrib["time"]) >= 0
    return suite
