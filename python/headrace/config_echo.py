"""The configuration's section `[echo]`.

In: values. Out: a section that cannot be wrong.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headrace import echo


class Echo(BaseModel):
    """Small datagrams are sent a second time, so that a lost one is repaired before anybody sees it; for the
    reasons see `headrace/echo.py` and docs/echo.md."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    mode: echo.Mode = "auto"
    """`auto`: while a path is new or loses packets. `on`: always, but for a queue. `off`: never."""
    near_ms: Annotated[float, Field(ge=1, le=50)] = echo.NEAR_MS
    """From a datagram to its copy."""
    far_ms: Annotated[float, Field(ge=5, le=200)] = echo.FAR_MS
    """To its second copy, against bursts. A stream that is alone gets a third, after 45 ms."""
    first_s: Annotated[float, Field(ge=0, le=60)] = echo.FIRST_S
    """How long a path that is new gets copies; 3.5 s and 128 packets at least."""
    hold_s: Annotated[float, Field(gt=0, le=3600)] = echo.HOLD_S
    """How long copies go on after a loss."""
    max_extra_bytes_per_s: Annotated[int, Field(ge=8192)] = echo.MAX_EXTRA_BYTES_PER_S
    """What copies may add to one connection."""

    @model_validator(mode="after")
    def _check(self) -> Echo:
        if self.far_ms <= self.near_ms:
            raise ValueError("echo: far_ms must be larger than near_ms")
        return self
