"""Streams, events and devices as far as the course uses them: launches finish before they return, so waiting is nothing."""

from __future__ import annotations

import time


class Event:
    """A point in time; the clock is the CPU's."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False):
        self.seconds = None

    def record(self, stream=None) -> None:
        self.seconds = time.perf_counter()

    def synchronize(self) -> None:
        pass


def get_elapsed_time(start: Event, end: Event) -> float:
    """Milliseconds between two recorded events."""
    if start.seconds is None or end.seconds is None:
        raise RuntimeError("record() both events before asking for the time between them")
    return (end.seconds - start.seconds) * 1e3


class Stream:
    """The one stream there is."""

    def __init__(self, null: bool = False, non_blocking: bool = False):
        pass

    def synchronize(self) -> None:
        pass

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


Stream.null = Stream(null=True)


class Device:
    """The CPU device itself."""

    def __init__(self, id: int = 0):
        self.id = id

    def synchronize(self) -> None:
        pass
