"""Tests of the example programs' own code, with no model and no network."""
