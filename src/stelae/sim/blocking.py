"""Code that blocks in the simulated world: it runs the loop while it waits, so that everybody else goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from stelae.sim.effects import SimCrash
from stelae.sim.loop import SimLoop
from stelae.sim.process import SimProcess, current_process, outside

T = TypeVar("T")


def run_blocking(loop: SimLoop, job: Coroutine[Any, Any, T]) -> T:
    """Run the loop until the job is done, for code that blocks. The job belongs to the process that this code runs in:
    SimCrash if that process dies first."""
    process = current_process()
    if process is not None and not process.alive:
        job.close()
        raise SimCrash(f"the process {process.name} has crashed")
    task = loop.create_task(job)
    if process is None:
        return loop.run_until_complete(task)
    run_outside(loop, _done_or_dead(task, process))
    if not process.alive:
        raise SimCrash(f"the process {process.name} has crashed")
    return task.result()


def run_outside(loop: SimLoop, job: Coroutine[Any, Any, T]) -> T:
    """Run the loop until a job is done that belongs to no process, nor does stopping the loop: so it ends although the
    process that this code runs in crashes meanwhile."""
    return outside().run(lambda: loop.run_until_complete(loop.create_task(job)))


async def _done_or_dead(task: asyncio.Task[Any], process: SimProcess) -> None:
    await asyncio.wait((task, asyncio.ensure_future(process.ended())), return_when=asyncio.FIRST_COMPLETED)
