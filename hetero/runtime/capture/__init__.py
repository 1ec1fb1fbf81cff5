"""Capture and replay: which calls of a section are recorded, what runs between them, and why."""
