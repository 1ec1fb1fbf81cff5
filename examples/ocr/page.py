"""The page to read: one drawn here from known text, so that reading it can be marked, or the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

WIDTH, HEIGHT = 900, 1200
MARGIN, GUTTER = 60, 40
COLUMN = (WIDTH - 2 * MARGIN - GUTTER) // 2
PAPER, INK, FAINT = (252, 250, 244), (28, 28, 34), (96, 96, 104)
LEADING = 1.6  # line pitch over font size


# Pillow's decoders raise any of these for a damaged file.
_UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError)


class PageError(Exception):
    """The image given as a page cannot be read."""


@dataclass(frozen=True, slots=True)
class Page:
    """An RGB image and, where they are known, its true lines in reading order."""

    image: Image.Image
    lines: tuple[str, ...] | None = None


TITLE = "The Tide Tables of Port Ellery"
BYLINE = "Harbour Office, 14 March 1987 - Sheet No. 203, price $4.75"
LEAD = (
    "For sixty-one years the harbour master wrote down the height of the sea four times a day, "
    "in pencil, and never once left a blank. The books now fill a whole shelf."
)
LEFT = (
    ("1. How it was measured", True),
    (
        "A brass float rides in a stone well below the quay. A chain runs from the float over a wheel, "
        "and the wheel turns a pen: 1 cm on paper is 25 cm of water.",
        False,
    ),
    (
        "At 06:00, 12:00, 18:00 and midnight somebody climbs down 42 steps, reads the staff by lamp, "
        "and checks the pen against it. Any gap above 3 mm goes into the margin.",
        False,
    ),
)
RIGHT = (
    ("2. What the books show", True),
    (
        "The highest water stands on page 117: 6.84 m, on 1 February 1953, at 03:25. The lowest, "
        "only 0.09 m, came on a calm night in 1964.",
        False,
    ),
    (
        'Of 89,060 readings just 12 are marked "uncertain"; that is 0.013%. Fog, ice and a broken lamp '
        "explain them all (see p. 9). Who else can say as much?",
        False,
    ),
)
FOOTER = "Printed by Quill & Sons, Exchange Lane 7 | Questions? Ring 555-0148 before noon."


class _Pen:
    """Writes wrapped text down a column and remembers each line it wrote."""

    def __init__(self, draw: ImageDraw.ImageDraw) -> None:
        self.draw = draw
        self.lines: list[str] = []

    def write(
        self, text: str, x: int, y: float, size: int, width: int, ink: tuple[int, int, int] = INK
    ) -> float:
        """Write `text` from (x, y) down, no line wider than `width` px; returns the y below the last line."""
        font = ImageFont.load_default(size=size)
        for line in wrap(text, font, width):
            self.draw.text((x, y), line, font=font, fill=ink)
            self.lines.append(line)
            y += size * LEADING
        return y


def wrap(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> list[str]:
    """`text` broken at spaces into lines at most `width` px wide; a longer word keeps a line to itself."""
    lines: list[str] = []
    for word in text.split():
        if lines and font.getlength(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def render() -> Page:
    """A page of 900 x 1200 px: title, byline, lead, two columns, footer. The same pixels every time."""
    image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    draw = ImageDraw.Draw(image)
    pen, full = _Pen(draw), WIDTH - 2 * MARGIN
    y = pen.write(TITLE, MARGIN, 64, 46, full)
    y = pen.write(BYLINE, MARGIN, y + 8, 20, full, FAINT)
    draw.line((MARGIN, y + 12, WIDTH - MARGIN, y + 12), fill=FAINT, width=2)
    y = pen.write(LEAD, MARGIN, y + 44, 28, full)
    top = y + 48
    for x, column in ((MARGIN, LEFT), (MARGIN + COLUMN + GUTTER, RIGHT)):
        y = top
        for text, heading in column:
            y = pen.write(text, x, y, 30 if heading else 25, COLUMN) + 22
    pen.write(FOOTER, MARGIN, HEIGHT - 90, 18, full, FAINT)
    return Page(image, tuple(pen.lines))


def load(path: Path) -> Page:
    """The user's image as RGB, turned the way its camera held it, transparency laid over white.

    Raises: PageError if the file is not there, is not an image, or is too large to be opened safely.
    """
    try:
        with Image.open(path) as opened:
            upright = ImageOps.exif_transpose(opened).convert("RGBA")
    except _UNREADABLE as error:
        raise PageError(f"cannot read {path} as an image: {error}") from error
    white = Image.new("RGBA", upright.size, (255, 255, 255, 255))
    return Page(Image.alpha_composite(white, upright).convert("RGB"))
