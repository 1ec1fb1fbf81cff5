"""Slot programs: what a partition lowers to, its validation and its wire form; immutable data."""
