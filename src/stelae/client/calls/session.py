"""What all objects of one open database share: the backend, patience, and whether it is closed.

`run` carries out steps on the caller's thread. It needs no event loop and disturbs none, and any number of threads may
be in it. Waiting ends at once when the session is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock
from typing import Any, NoReturn, TypeVar, cast

from stelae.client.calls.retries import Attempts, Patience
from stelae.client.calls.steps import Pause, Step, Steps, asked
from stelae.model.errors import Closed, StelaeError
from stelae.service.backend import Backend

T = TypeVar("T")


class _ClosedBackend:
    """Stands where the backend was: whatever is asked of it raises Closed."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __getattr__(self, name: str) -> NoReturn:
        raise Closed(f"the database {self._place} is closed: open it again")


class Session:
    def __init__(self, backend: Backend, patience: Patience) -> None:
        self.backend = backend
        self.patience = patience
        self.place = backend.place
        self._ended = Event()
        self._lock = Lock()

    @property
    def is_closed(self) -> bool:
        return self._ended.is_set()

    def ask(self, job: Callable[[Backend], T]) -> T:
        """A single request that may be repeated."""
        return self.run(asked(job))

    def run(self, steps: Steps[T]) -> T:
        attempts: Attempts | None = None
        try:
            step = next(steps)
            while True:
                try:
                    result = self._carried_out(step)
                except StelaeError as error:
                    if isinstance(error, step.again):
                        attempts = attempts or Attempts(self.patience)
                        self.pause(attempts.delay_s(error))
                    else:
                        step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as done:
            return cast(T, done.value)

    def _carried_out(self, step: Step) -> Any:
        if not isinstance(step, Pause):
            return step.carry_out(self.backend)
        self.pause(step.seconds)
        return None

    def pause(self, seconds: float) -> None:
        """Closed as soon as the session is."""
        if self._ended.wait(seconds):
            raise Closed(f"the database {self.place} was closed meanwhile")

    def close(self) -> None:
        """Waits for writes under way. Closing twice is no error."""
        with self._lock:
            if self._ended.is_set():
                return
            backend = self.backend
            self._ended.set()
            closed: Any = _ClosedBackend(self.place)
            self.backend = closed
            backend.close()
