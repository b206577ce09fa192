"""Which models there are.

In: the upstreams, or the fields of a request's body. Out: the merged list that `/v1/models` answers with, or
the model that a request asks for.
"""

from __future__ import annotations

from typing import Any

from headrace.exchange import Request
from headrace.gateway.upstreams import Upstream

BODY_FIELDS = ("model",)
"""What the gateway reads of a request's body (`Exchange.body_fields`)."""


def asked(fields: dict[str, str | bool | None] | None) -> str | None:
    """The model that a request names, by its body's fields. `None` when it names none: so does a body that is
    not a JSON object.

    Raises `ValueError` when what it names cannot be the name of a model.
    """
    model = fields.get("model") if fields else None
    if fields and "model" in fields and not isinstance(model, str):
        raise ValueError("the request's `model` is not a text of at most 256 bytes")
    return model if isinstance(model, str) else None


def is_unreadable(request: Request, fields: dict[str, str | bool | None] | None) -> bool:
    """Whether a body that says that it is JSON is not, so that a model that it may name is not known."""
    kind = (request.header("content-type") or "application/json").partition(";")[0].strip().lower()
    return fields is None and kind == "application/json"


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
