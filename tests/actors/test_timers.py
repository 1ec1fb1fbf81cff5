"""Threads that run partitions wake when their time is over; others are left as they are."""

from __future__ import annotations

import threading

from actors.timers import slack_ns, wake_on_time


def test_a_thread_is_punctual_from_when_it_says_so_and_no_other_is() -> None:
    before, seen = slack_ns(), []

    def waiting() -> None:
        seen.append(slack_ns())
        wake_on_time()
        seen.append(slack_ns())

    thread = threading.Thread(target=waiting)
    thread.start()
    thread.join()
    assert seen == [before, 1]
    assert slack_ns() == before
