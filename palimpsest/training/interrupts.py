"""Signals: the first one asks to stop after this step, the second one does not wait."""

import os
import signal
import threading
import time
from types import FrameType, TracebackType


class Interrupts:
    """`with Interrupts() as stop: … if stop.asked: …`"""

    NAMES = ("SIGINT", "SIGTERM", "SIGUSR1")  # the last is how schedulers say that time is nearly up
    SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))  # Windows has but two

    def __init__(self, echo: float = 0.0) -> None:
        self.asked = False
        self.echo, self.since = echo, 0.0  # seconds in which another signal is taken for the same one
        self.before: dict[int, object] = {}

    def __enter__(self) -> "Interrupts":
        # Python lets the main thread only catch signals; elsewhere they stay what they were
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self.catch) for number in self.SIGNALS}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def catch(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked, self.since = True, time.monotonic()
        elif time.monotonic() - self.since >= self.echo:
            os._exit(128 + number)
