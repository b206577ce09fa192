"""Which models there are.

In: the upstreams, or the fields of a request's body. Out: the merged list that `/v1/models` answers with, or
the model that a request asks for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.exchange import Request
from headrace.gateway.upstreams import Upstream

BODY_FIELDS = ("model",)
"""What the gateway reads of a request's body (`Exchange.body_fields`)."""


class Asked(NamedTuple):
    """The model that a request asks for."""

    model: str | None
    """`None`: the request names none, or none that can be read."""
    flaw: str | None = None
    """Why the model that the request may name cannot be read."""


def asked(request: Request, fields: dict[str, str | bool | None] | None) -> Asked:
    """What a request asks for, by its body's fields. A body of another type than JSON names no model."""
    if fields is None:
        content_type = request.header("content-type") or "application/json"
        is_json = content_type.partition(";")[0].strip().lower() == "application/json"
        return Asked(None, "the request's body is not a JSON object" if is_json else None)
    model = fields.get("model")
    if isinstance(model, str):
        return Asked(model)
    return Asked(
        None, "the request's `model` is not a text of at most 256 bytes" if "model" in fields else None
    )


def merged(upstreams: list[Upstream]) -> dict[str, Any]:
    """All models by name, each with the upstreams that serve it. Patterns name no model and are left out."""
    owners: dict[str, list[str]] = {}
    for upstream in upstreams:
        for model in upstream.models:
            if "*" not in model:
                owners.setdefault(model, []).append(upstream.name)
    data = [
        {"id": model, "object": "model", "created": 0, "owned_by": ", ".join(names)}
        for model, names in sorted(owners.items())
    ]
    return {"object": "list", "data": data}
