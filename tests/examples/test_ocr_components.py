"""Connected components are the ones a flood fill finds, on pictures one can see and on any other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from examples.ocr.components import find_components


def mask(*rows: str) -> NDArray[np.bool_]:
    return np.array([[cell == "#" for cell in row] for row in rows])


def boxes_of(picture: NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    found = find_components(picture)
    corners = np.stack([found.left, found.top, found.right, found.bottom], axis=1)
    return [(int(a), int(b), int(c), int(d)) for a, b, c, d in corners]


@pytest.mark.parametrize(
    ("picture", "boxes"),
    [
        pytest.param(mask("....", "...."), [], id="empty"),
        pytest.param(mask("####", "####"), [(0, 0, 4, 2)], id="full"),
        pytest.param(mask("##.##", "##.##"), [(0, 0, 2, 2), (3, 0, 5, 2)], id="side by side"),
        pytest.param(mask("##..", "..##"), [(0, 0, 4, 2)], id="corners touch, falling"),
        pytest.param(mask("..##", "##.."), [(0, 0, 4, 2)], id="corners touch, rising"),
        pytest.param(mask("##..", "...#"), [(0, 0, 2, 1), (3, 1, 4, 2)], id="one short of touching"),
        pytest.param(mask("#...", "....", "#..."), [(0, 0, 1, 1), (0, 2, 1, 3)], id="a row between"),
        pytest.param(
            mask("#####", "#...#", "#.#.#", "#...#", "#####"), [(0, 0, 5, 5), (2, 2, 3, 3)], id="nested"
        ),
        pytest.param(mask("#...#", "#...#", "#####"), [(0, 0, 5, 3)], id="two arms joined below"),
        pytest.param(mask("#.#.#.#", "#######"), [(0, 0, 7, 2)], id="a comb"),
        pytest.param(mask("...#", "#..."), [(3, 0, 4, 1), (0, 1, 1, 2)], id="row ends do not wrap"),
    ],
)
def test_components_have_the_boxes_one_sees(
    picture: NDArray[np.bool_], boxes: list[tuple[int, int, int, int]]
) -> None:
    assert boxes_of(picture) == boxes


def flood_fill(picture: NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    left, boxes = picture.copy(), []
    for y, x in np.argwhere(picture):
        if not left[y, x]:
            continue
        left[y, x] = False
        todo, seen = [(int(y), int(x))], []
        while todo:
            at = todo.pop()
            seen.append(at)
            for near in np.ndindex(3, 3):
                v, u = at[0] + near[0] - 1, at[1] + near[1] - 1
                if 0 <= v < left.shape[0] and 0 <= u < left.shape[1] and left[v, u]:
                    left[v, u] = False
                    todo.append((v, u))
        rows, columns = zip(*seen, strict=True)
        boxes.append((min(columns), min(rows), max(columns) + 1, max(rows) + 1))
    return boxes


@settings(deadline=None, max_examples=150)
@given(arrays.arrays(np.bool_, arrays.array_shapes(min_dims=2, max_dims=2, max_side=12)))
def test_components_are_those_of_a_flood_fill(picture: NDArray[np.bool_]) -> None:
    assert sorted(boxes_of(picture)) == sorted(flood_fill(picture))


def test_a_long_spiral_is_one_component() -> None:
    """The worst case for label propagation: a path whose ends are far apart."""
    size = 101
    picture = np.zeros((size, size), np.bool_)
    top, left, bottom, right = 0, 0, size - 1, size - 1
    while left < right and top < bottom:
        picture[top, max(left - 2, 0) : right + 1] = True
        picture[top : bottom + 1, right] = True
        picture[bottom, left : right + 1] = True
        picture[top + 2 : bottom + 1, left] = True
        top, left, bottom, right = top + 2, left + 2, bottom - 2, right - 2
    assert boxes_of(picture)[0] == (0, 0, size, size)
    assert sorted(boxes_of(picture)) == sorted(flood_fill(picture))
