"""Generating tokens with a decoder model: greedy, by sampling, or speculatively with a draft."""

from hetero.decode.decoder import Decoder
from hetero.decode.sampling import GREEDY, Sampling

__all__ = ["GREEDY", "Decoder", "Sampling"]
