"""What is answered: one frame, or what became of long work."""

from __future__ import annotations

import asyncio
from typing import Any

from stelae.model.errors import Closed, UnknownOutcome
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.service.bodies import Bytes
from stelae.service.operations import Operation


def outcome_of(work: asyncio.Task[Bytes], operation: Operation[Any, Any]) -> Bytes:
    """What a store that was closed in the middle leaves open, its caller is not told to repeat."""
    try:
        return work.result()
    except Closed as error:
        if operation.is_repeatable:
            raise
        raise UnknownOutcome(
            f"{operation.name} may or may not have happened: the store was closed meanwhile: {error}"
        ) from error


def answer_frame(request: RequestId, body: Bytes) -> Frame:
    return Frame(FrameKind.ANSWER, request, "", b"", body)
