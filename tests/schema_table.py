"""Pydantic classes whose JSON schemas have formats, patterns, references and keywords that no grammar expresses."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import IPv4Address
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field, SecretBytes, SecretStr


class Sets(BaseModel):
    """`uniqueItems`."""

    kinds: set[Literal["worker", "drone", "queen"]]
    sizes: frozenset[bool] = Field(max_length=2)


class Dates(BaseModel):
    """Formats of dates and times."""

    day: date
    at: datetime
    clock: time
    duration: timedelta


class Decimals(BaseModel):
    """Numbers, or texts that denote numbers."""

    price: Annotated[Decimal, Field(ge=0, le=1000)]
    weight: Annotated[Decimal, Field(ge=0, le=5)]


class Bytes(BaseModel):
    """The format "binary"."""

    data: bytes


class Secrets(BaseModel):
    """The format "password" and write-only fields."""

    password: Annotated[SecretStr, Field(max_length=12)]
    key: SecretBytes


class LiteralKeys(BaseModel):
    """`propertyNames` with an `enum`."""

    counts: dict[Literal["bees", "ants"], bool]


class Tree(BaseModel):
    """A class that refers to itself."""

    is_leaf: bool
    children: list[Tree]


class Cat(BaseModel):
    """A member of unions."""

    kind: Literal["cat"]
    lives: Literal[7, 9]


class Dog(BaseModel):
    """A member of unions that refers to another class."""

    kind: Literal["dog"]
    friend: Cat | None


class Unions(BaseModel):
    """`anyOf`, and `oneOf` with a discriminator."""

    value: bool | Cat | None
    animal: Annotated[Cat | Dog, Field(discriminator="kind")]


class Formats(BaseModel):
    """Formats of identifiers."""

    id: UUID
    address: IPv4Address


CLASSES: list[Any] = [Sets, Dates, Decimals, Bytes, Secrets, LiteralKeys, Tree, Unions, Formats]
