"""The page reader without a model: the page, its boxes, their order, the text in an answer, the whole way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from examples.ocr import detect, draw, page, recognise
from examples.ocr.layout import Box, reading_order
from examples.ocr.read import OutputError, Reading, read_page
from examples.ocr.recognise import Read
from examples.ocr.runners import Arrays


def line(left: float, top: float, width: float, height: float = 20) -> Box:
    return Box(left, top, left + width, top + height)


class Fixed:
    """A runner that always gives the same outputs."""

    def __init__(self, **outputs: NDArray[np.float32]) -> None:
        self.outputs: Arrays = dict(outputs)

    def run(self, feeds: Arrays) -> Arrays:
        del feeds
        return self.outputs


ONES = np.ones((2, 2), np.float32)


def test_the_page_holds_its_lines_and_is_the_same_every_time() -> None:
    first, second = page.render(), page.render()
    assert first.lines is not None
    assert first.lines[0] == page.TITLE
    assert first.lines[-1] == page.FOOTER
    assert 20 <= len(first.lines) <= 35
    assert " ".join(first.lines[2:5]) == page.LEAD
    assert first.image.size == (page.WIDTH, page.HEIGHT)
    assert first.image.tobytes() == second.image.tobytes()


def test_no_line_of_the_page_runs_off_the_paper() -> None:
    pixels = np.asarray(page.render().image)
    paper = np.array(page.PAPER, np.uint8)
    edge = page.MARGIN - 5
    for border in (pixels[:edge], pixels[-edge:], pixels[:, :edge], pixels[:, -edge:]):
        assert (border == paper).all()


def test_a_transparent_image_is_laid_over_white(tmp_path: Path) -> None:
    path = tmp_path / "clear.png"
    Image.new("RGBA", (4, 3), (255, 0, 0, 0)).save(path)
    loaded = page.load(path)
    assert loaded.lines is None
    assert loaded.image.getpixel((1, 1)) == (255, 255, 255)


@pytest.mark.parametrize("content", [None, b"", b"not an image", b"\x89PNG\r\n\x1a\n" + b"\0" * 30])
def test_what_is_no_image_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "page.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(page.PageError, match=r"page\.png"):
        page.load(path)


@pytest.mark.parametrize(
    ("page_size", "network"),
    [((900, 1200), (704, 960)), ((64, 64), (64, 64)), ((5, 4000), (32, 960)), ((100, 10), (96, 32))],
)
def test_the_network_gets_sides_it_can_halve_five_times(
    page_size: tuple[int, int], network: tuple[int, int]
) -> None:
    assert detect.network_size(*page_size) == network
    fed = detect.prepare(Image.new("RGB", page_size))
    assert fed.shape == (1, 3, network[1], network[0])
    assert fed.dtype == np.float32


def test_the_network_gets_blue_first_and_values_from_minus_one_to_one() -> None:
    fed = detect.prepare(Image.new("RGB", (32, 32), (255, 0, 0)))
    assert fed[0, :, 5, 5].tolist() == [-1.0, -1.0, 1.0]


def test_a_box_grows_and_is_scaled_back_to_the_page() -> None:
    chance = np.zeros((1, 1, 64, 96), np.float32)
    chance[0, 0, 20:30, 30:60] = 0.9
    (box,) = detect.find_boxes(chance, (192, 64))  # the page is twice as wide as the map
    grown = 30 * 10 * 1.6 / (2 * (30 + 10))
    assert (box.left, box.right) == pytest.approx(((30 - grown) * 2, (60 + grown) * 2))
    assert (box.top, box.bottom) == pytest.approx((20 - grown, 30 + grown))
    assert box.score == pytest.approx(0.9)


def test_boxes_stay_on_the_page() -> None:
    (box,) = detect.find_boxes(np.full((1, 1, 32, 32), 0.9, np.float32), (50, 40))
    assert (box.left, box.top, box.right, box.bottom) == (0, 0, 50, 40)


def test_thin_and_unsure_boxes_are_dropped() -> None:
    chance = np.zeros((1, 1, 64, 64), np.float32)
    chance[0, 0, 5:7, 5:40] = 0.99  # two rows high
    chance[0, 0, 20:30, 5:40] = 0.4  # text by pixel, but not sure enough as a box
    assert detect.find_boxes(chance, (64, 64)) == []


def test_a_title_is_read_first_then_the_columns_one_by_one() -> None:
    title, foot = line(0, 0, 400, 40), line(0, 300, 400)
    left = [line(0, top, 180) for top in (80, 108, 136, 200)]
    right = [line(220, top, 180) for top in (80, 108, 172, 200)]
    expected = [title, *left, *right, foot]
    shuffled = [expected[i] for i in np.random.default_rng(3).permutation(len(expected))]
    assert reading_order(shuffled) == expected


def test_pieces_of_one_line_are_read_from_left_to_right() -> None:
    pieces = [line(0, 2, 50), line(80, 0, 50), line(160, 1, 50)]
    assert reading_order(pieces[::-1]) == pieces


def test_boxes_that_overlap_a_little_are_still_read_downwards() -> None:
    lines = [line(0, top, 200, 30) for top in (0, 24, 48, 72)]
    assert reading_order(lines[::-1]) == lines


def test_a_thousand_boxes_are_ordered_without_deep_recursion() -> None:
    lines = [line(0, 20 * i + (0.6 ** min(i, 40)) * 100, 200, 10) for i in range(1000)]
    assert reading_order(lines[::-1]) == sorted(lines, key=lambda box: box.top)
    assert reading_order([]) == []


LETTERS = ("", "a", "b", " ")


def answers(*lines: Sequence[int], sure: float = 0.7) -> NDArray[np.float32]:
    rest = (1 - sure) / (len(LETTERS) - 1)
    eye = np.eye(len(LETTERS), dtype=np.float32)
    return np.stack([eye[list(classes)] * (sure - rest) + rest for classes in lines]).astype(np.float32)


@pytest.mark.parametrize(
    ("classes", "text"),
    [
        ([1, 1, 1], "a"),
        ([1, 0, 1], "aa"),
        ([0, 1, 1, 0, 0, 2, 2, 0], "ab"),
        ([1, 2, 1], "aba"),
        ([1, 3, 3, 2], "a b"),
        ([0, 0, 0], ""),
    ],
)
def test_repeats_merge_and_blanks_vanish(classes: list[int], text: str) -> None:
    (read,) = recognise.decode(answers(classes), LETTERS)
    assert read.text == text
    assert read.confidence == pytest.approx(0.7 if text else 0.0)


def test_confidence_is_the_mean_over_the_characters_kept() -> None:
    sure = np.concatenate([answers([1], sure=0.9), answers([1], sure=0.4), answers([2], sure=0.5)], axis=1)
    (read,) = recognise.decode(sure, LETTERS)
    assert read.text == "ab"
    assert read.confidence == pytest.approx(0.7)


def test_lines_of_a_batch_are_decoded_each_for_itself() -> None:
    assert [read.text for read in recognise.decode(answers([1, 1], [1, 2], [0, 2]), LETTERS)] == [
        "a",
        "ab",
        "b",
    ]


def test_an_alphabet_of_another_size_is_refused() -> None:
    with pytest.raises(recognise.AlphabetError, match="4 classes, but 3 characters"):
        recognise.decode(answers([1]), LETTERS[:3])


def test_batches_hold_every_line_once_narrowest_first_padded_with_zero() -> None:
    picture = Image.new("RGB", (900, 300), (255, 255, 255))
    boxes = [
        line(0, 0, 800, 30),
        line(0, 40, 50, 30),
        line(0, 80, 300, 30),
        line(0, 120, 210, 30),
        line(5, 200, 1),
    ]
    given = list(recognise.batches(picture, boxes, size=2))
    assert [batch.indices for batch in given] == [(4, 1), (3, 2), (0,)]
    assert [batch.feed.shape for batch in given] == [(2, 3, 48, 320), (2, 3, 48, 480), (1, 3, 48, 1280)]
    first = given[0].feed[1]  # 50 x 30 px of white become 80 x 48, the rest is padding
    assert (first[:, :, :80] == 1).all()
    assert (first[:, :, 80:] == 0).all()


def test_a_very_long_line_is_squeezed_rather_than_cut() -> None:
    picture = Image.new("RGB", (5000, 20))
    (batch,) = recognise.batches(picture, [line(0, 0, 5000)])
    assert batch.feed.shape == (1, 3, 48, recognise.WIDEST)
    assert (batch.feed == -1).all()


def test_the_annotated_page_is_saved_with_any_text(tmp_path: Path) -> None:
    picture = Image.new("RGB", (200, 100), (255, 255, 255))
    boxes = [line(10, 10, 150), line(10, 50, 4, 3)]
    sheet = draw.annotate(picture, boxes, [Read("line\u4e2d [bold]", 0.99), Read("", 0.0)])
    path = draw.save(sheet, tmp_path / "new" / "page.png")
    with Image.open(path) as saved:
        assert saved.size == (400, 100)
        assert saved.getpixel((10, 10)) == draw.SURE
        assert saved.getpixel((10, 50)) == draw.UNSURE


class Spelling:
    """A recogniser that reads `a` in every line, over a step as wide as the line."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def run(self, feeds: Arrays) -> Arrays:
        self.shapes.append(feeds["x"].shape)
        return {"y": answers(*[[0, 1, 0]] * len(feeds["x"]))}


def test_a_page_is_read_by_one_call_of_the_detector_and_one_per_batch() -> None:
    chance = np.zeros((1, 1, 96, 96), np.float32)
    for row in (10, 40, 70):
        chance[0, 0, row : row + 8, 10:60] = 0.9
    told: list[tuple[str, int, int]] = []
    spelling = Spelling()
    reading = read_page(
        Image.new("RGB", (96, 96)),
        Fixed(map=chance),
        spelling,
        LETTERS,
        batch=2,
        progress=lambda *step: told.append(step),
    )
    assert reading.lines == ("a", "a", "a")
    assert [round(box.top) for box in reading.boxes] == [4, 34, 64]
    assert [shape[0] for shape in spelling.shapes] == [2, 1]
    assert told[-1] == ("read lines", 3, 3)


def test_unsure_and_blank_lines_are_left_out_and_counted() -> None:
    reads = Read("good", 0.8), Read("noise", 0.3), Read("  ", 0.9)
    reading = Reading((line(0, 0, 9),) * 3, reads)
    assert reading.lines == ("good",)
    assert reading.left_out == 2


@pytest.mark.parametrize("outputs", [{}, {"y": ONES}, {"y": ONES, "z": ONES}])
def test_an_output_of_another_form_is_refused(outputs: Arrays) -> None:
    with pytest.raises(OutputError, match="was expected"):
        read_page(Image.new("RGB", (64, 64)), Fixed(**outputs), Spelling(), LETTERS)
