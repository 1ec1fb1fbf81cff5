"""The page as it was read: numbered boxes on the left, what was read in each, in place, on the right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from examples.ocr.layout import Box
from examples.ocr.recognise import Read

SURE, UNSURE = (24, 128, 84), (200, 64, 32)
SURE_FROM = 0.9
INK = (20, 20, 24)


def annotate(image: Image.Image, boxes: Sequence[Box], reads: Sequence[Read]) -> Image.Image:
    """A picture twice as wide as `image`. Boxes are green from a confidence of 0.9 on, else orange.

    Pillow's built-in font is Latin: other scripts show as empty squares here, though they were read.
    """
    width, height = image.size
    sheet = Image.new("RGB", (2 * width, height), (255, 255, 255))
    sheet.paste(image, (0, 0))
    draw = ImageDraw.Draw(sheet)
    draw.line((width, 0, width, height), fill=(180, 180, 180))
    label = ImageFont.load_default(size=max(10, round(height / 90)))
    for number, (box, read) in enumerate(zip(boxes, reads, strict=True), start=1):
        colour = SURE if read.confidence >= SURE_FROM else UNSURE
        draw.rectangle((box.left, box.top, box.right - 1, box.bottom - 1), outline=colour, width=2)
        draw.text((max(box.left - 5, 14), box.top), str(number), font=label, fill=colour, anchor="ra")
        middle = (width + box.left + 3, (box.top + box.bottom) / 2)
        draw.text(middle, read.text, font=_fitting(read.text, box), fill=INK, anchor="lm")
        draw.rectangle(
            (width + box.left, box.top, width + box.right - 1, box.bottom - 1), outline=(214, 222, 218)
        )
    return sheet


def _fitting(text: str, box: Box) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    size = max(6.0, box.height * 0.7)
    length = ImageFont.load_default(size=size).getlength(text)
    room = max(1.0, box.width - 6)
    return ImageFont.load_default(size=max(6.0, size * min(1.0, room / max(length, 1.0))))


def save(picture: Image.Image, path: Path) -> Path:
    """Write `picture` as PNG, making the folder; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, format="PNG")
    return path
