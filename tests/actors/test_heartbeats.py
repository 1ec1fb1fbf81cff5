"""Who is silent for how long, counted by those who listen."""

from __future__ import annotations

from actors.heartbeats import Silence, period_s


def test_silence_adds_up_and_one_beat_ends_it() -> None:
    silence = Silence(period=5.0)
    assert silence.heard({"a": 1, "b": 0}, 5.0) == {"a": 0.0, "b": 0.0}, "listening has only begun"
    assert silence.heard({"a": 0, "b": 0}, 5.0) == {"a": 5.0, "b": 5.0}
    assert silence.heard({"a": 0, "b": 2}, 5.0) == {"a": 10.0, "b": 0.0}


def test_who_did_not_listen_blames_nobody() -> None:
    silence = Silence(period=5.0)
    silence.heard({"a": 1}, 5.0)
    assert silence.heard({"a": 0}, 3600.0) == {"a": 10.0}


def test_an_incarnation_that_is_no_more_is_forgotten() -> None:
    silence = Silence(period=5.0)
    silence.heard({"a": 0}, 5.0)
    silence.heard({}, 5.0)
    assert silence.heard({"a": 0}, 5.0) == {"a": 0.0}


def test_there_are_several_beats_in_what_counts_as_silence() -> None:
    assert period_s(30.0) == 5.0
    assert period_s(2.0) == 0.5
