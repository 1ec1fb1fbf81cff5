"""Who is silent for how long, counted by those who listen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from actors.heartbeats import Silence, Stopped, is_stopped, period_s


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


def test_only_looks_in_a_row_count() -> None:
    stopped = Stopped(most=2)
    assert stopped.seen({"a": True, "b": True}) == []
    assert stopped.seen({"a": True, "b": False}) == []
    assert stopped.seen({"a": True, "b": True}) == ["a"]
    assert stopped.seen({"b": True}) == []
    assert stopped.seen({"a": True, "b": True}) == ["b"], "one that was not looked at begins anew"


def test_a_process_is_stopped_between_the_two_signals_and_at_no_other_time() -> None:
    waits = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert is_stopped(process.pid)
        process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED)
        assert not is_stopped(process.pid)
        process.kill()
    assert not is_stopped(process.pid)
