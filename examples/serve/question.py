# SPDX-License-Identifier: Apache-2.0
"""Question: the checked content of a request."""

from __future__ import annotations

from typing import Annotated

from fastapi import HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from starlette.requests import ClientDisconnect

MAX_BYTES = 2**20  # of a request
MAX_TEXTS = 64
MAX_LENGTH = 2000  # characters of a text
MAX_EXCLUDED = 1000  # classes
DEFAULT_K = 10

Class = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_LENGTH)]


class Question(BaseModel):
    """Texts, the number of classes per text, and excluded classes."""

    model_config = ConfigDict(strict=True, extra="forbid")

    texts: Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
    k: Annotated[int, Field(ge=1)] | None = None
    num_probed: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    exclude: Annotated[list[Class], Field(max_length=MAX_EXCLUDED)] = []


async def read_question(
    request: Request, most: int, takes_num_probed: bool, takes_exclude: bool = False
) -> Question:
    """Returns the content of a request, for a model that returns up to `most` classes.

    Raises:
        HTTPException: It can't be answered; the detail has the broken rule.
    """
    try:
        question = Question.model_validate_json(await _body(request))
    except ValidationError as error:
        raise HTTPException(400, _first(error)) from error
    if question.k is None:
        question.k = min(DEFAULT_K, most)
    if question.k > most:
        raise HTTPException(400, f"k: must be at most {most} for this model; got {question.k}")
    if question.num_probed is not None and not takes_num_probed:
        raise HTTPException(400, "num_probed: this model has no index, and takes none")
    if question.exclude and not takes_exclude:
        raise HTTPException(400, "exclude: this model was exported without it, and takes none")
    return question


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MAX_BYTES:
                raise HTTPException(413, f"a request must have at most {MAX_BYTES} bytes")
    except ClientDisconnect as error:
        raise HTTPException(400, "the request ended too early") from error
    return bytes(body)


def _first(error: ValidationError) -> str:
    # Without the input, which may be long, or not valid JSON.
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"])) or "request"
    return f"{place}: {first['msg']}"
