"""Marks, checks and the report: a wrong character or a wrong output never passes unseen."""

from __future__ import annotations

import json
import re
import warnings
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rich.console import Console

from examples.ocr import report, score
from examples.ocr.layout import Box
from examples.ocr.read import Reading
from examples.ocr.recognise import Read
from examples.ocr.report import ModelReport, Report
from examples.ocr.runners import Arrays, Checked, compare


@pytest.mark.parametrize(
    ("a", "b", "edits"),
    [
        ("", "", 0),
        ("", "abc", 3),
        ("abc", "abc", 0),
        ("kitten", "sitting", 3),
        ("flaw", "lawn", 2),
        ("a😀", "a", 1),
    ],
)
def test_edit_distance_of_known_pairs(a: str, b: str, edits: int) -> None:
    assert score.edit_distance(a, b) == edits
    assert score.edit_distance(b, a) == edits


def textbook_distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        above, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))
    return row[-1]


@settings(deadline=None, max_examples=150)
@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_edit_distance_is_the_textbook_one(a: str, b: str) -> None:
    assert score.edit_distance(a, b) == textbook_distance(a, b)


def test_a_page_read_right_scores_one() -> None:
    marks = score.score_page(["one", "two"], ["one", "two"])
    assert (marks.accuracy, marks.exact_lines, marks.extra) == (1.0, 2, ())


def test_lines_in_the_wrong_order_match_but_cost_the_page() -> None:
    marks = score.score_page(["first line", "other words"], ["other words", "first line"])
    assert marks.exact_lines == 2
    assert marks.accuracy < 0.6


def test_lost_and_extra_lines_are_told_and_counted() -> None:
    marks = score.score_page(["hello there", "general"], ["hello thare", "12345"])
    assert [entry.read for entry in marks.lines] == ["hello thare", None]
    assert [entry.edits for entry in marks.lines] == [1, 7]
    assert marks.extra == ("12345",)
    assert score.score_page(["x"], []).accuracy == 0.0
    assert score.score_page([], []).accuracy == 1.0


class Fixed:
    """A runner that always gives the same outputs."""

    def __init__(self, **outputs: NDArray[np.float32]) -> None:
        self.outputs: Arrays = dict(outputs)

    def run(self, feeds: Arrays) -> Arrays:
        del feeds
        return self.outputs


ONES = np.ones((2, 2), np.float32)


@pytest.mark.parametrize(
    ("got", "problem"),
    [
        (ONES * np.float32(1.0005), None),
        (ONES * np.float32(1.01), "4 of 4 differ"),
        (np.array([[1, 1], [1, np.nan]], np.float32), r"first at \[1, 1\]: nan"),
        (np.array([[1, 1], [1, np.inf]], np.float32), r"first at \[1, 1\]: inf"),
        (ONES[:1], "is right"),
        (ONES.astype(np.float16), "is right"),
        (None, "missing"),
    ],
)
def test_a_wrong_output_never_passes(got: NDArray[np.float32] | None, problem: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check = compare("m", 1, "y", got, ONES)
    if problem is None:
        assert check.problem is None
        assert 0 < check.max_abs < 1e-3
    else:
        assert check.problem is not None
        assert re.search(problem, check.problem)


def test_a_checked_runner_returns_its_own_answer_and_remembers_the_difference() -> None:
    wrong = ONES * 2
    checked = Checked("m", Fixed(y=wrong, z=ONES), Fixed(y=ONES))
    assert checked.run({"x": ONES})["y"] is wrong
    assert not checked.agrees
    assert checked.max_abs == 1.0
    assert [check.problem is None for check in checked.checks] == [False, False]
    assert len(checked.seconds) == len(checked.reference_seconds) == 1


def test_the_report_ends_well_only_if_outputs_agree_and_the_page_was_read() -> None:
    good, bad = Checked("det", Fixed(y=ONES), Fixed(y=ONES)), Checked("rec", Fixed(y=ONES * 2), Fixed(y=ONES))
    for checked in (good, bad):
        checked.run({"x": ONES})
    marks = score.score_page(["hello there"], ["hello"])
    nothing = Reading((), ())
    assert Report(nothing, None, (ModelReport(good),), {}).problems == ()
    (problem,) = Report(nothing, None, (ModelReport(good), ModelReport(bad)), {}).problems
    assert problem.startswith("rec call 1, output y: 4 of 4 differ")
    (problem,) = Report(nothing, marks, (ModelReport(good),), {}).problems
    assert problem.startswith("45.5% of the known text read")


def test_the_report_as_json_has_no_nan_and_no_numpy() -> None:
    checked = Checked("det", Fixed(), Fixed(y=ONES))
    checked.run({"x": ONES})
    statistics = {"steps": np.int64(3), "children": {"cpu": {"bytes": {"peak": np.float32(2)}}}}
    box = Box(0, 0, 5, 5)
    reading = Reading((box,), (Read("x\u2028y", 0.5),))
    data = json.loads(report.to_json(Report(reading, None, (ModelReport(checked, None, statistics),), {})))
    assert data["ok"] is False
    assert data["models"]["det"]["max_abs_difference"] is None
    assert data["models"]["det"]["statistics"]["children"]["cpu"]["bytes"]["peak"] == 2
    assert data["lines"][0]["text"] == "x\u2028y"


def test_statistics_become_one_column_per_child() -> None:
    nested = {"steps": 3, "children": {"sim:0": {"cache": {"hits": 1}}, "cpu": {}}}
    assert report.per_child(nested) == {"executor": {"steps": 3}, "sim:0": {"cache.hits": 1}, "cpu": {}}
    assert report.per_child({}) == {}


def test_the_report_prints_brackets_and_marks_as_they_are() -> None:
    checked = Checked("det", Fixed(y=ONES), Fixed(y=ONES))
    checked.run({"x": ONES})
    reading = Reading((Box(0, 0, 5, 5),), (Read("[bold]see [1][/x]", 0.9),))
    told = ModelReport(checked, "plan [0]\n" * 20, {"children": {"a[b]": {"calls": 17}}})
    console = Console(record=True, width=100, file=StringIO())
    report.show(
        Report(reading, score.score_page(["other"], ["x"]), (told,), {"text": Path("a.txt")}), console
    )
    shown = console.export_text()
    for expected in (
        "[bold]see [1][/x]",
        "plan [0]",
        "and 13 lines more",
        "a[b]",
        "17",
        "a.txt",
        "wrong: 0.0%",
    ):
        assert expected in shown
