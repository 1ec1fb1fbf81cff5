"""The sizes that a convolution's routes choose by and work with."""

from __future__ import annotations

from dataclasses import dataclass

from hetero.kernels.window import Window


@dataclass(frozen=True, slots=True)
class ConvShape:
    """`channels` in, `maps` out, both split into `group` independent convolutions under one window."""

    batch: int
    channels: int
    maps: int
    group: int
    window: Window

    @property
    def group_channels(self) -> int:
        """Input channels of one group."""
        return self.channels // self.group

    @property
    def group_maps(self) -> int:
        """Output maps of one group."""
        return self.maps // self.group

    @property
    def depth(self) -> int:
        """Products summed for one output element."""
        return self.group_channels * self.window.taps

    @property
    def empty(self) -> bool:
        """Whether the output has no element."""
        return self.batch * self.maps * self.window.positions == 0
