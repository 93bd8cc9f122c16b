"""Schemas in the styles of public APIs, drawn at random: what tools, forms and records look like.

Every text of such a schema is bounded, so that an answer ends whatever the model is like.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
NAMES = ("id", "name", "city", "unit", "count", "items", "status", "when", "amount", "tags", "note")
WORDS = ("celsius", "fahrenheit", "open", "closed", "in progress", "déjà vu", 'a "quoted" word')
PATTERNS = ("^[a-z]{2,6}$", "^\\d{3}-\\d{4}$", "^(north|south) [A-F]$", "^#[0-9a-f]{6}$")


def scalar(choose: random.Random) -> Schema:
    kinds: list[Callable[[], Schema]] = [
        lambda: {"type": "string", "maxLength": choose.randint(1, 12)},
        lambda: {"type": "string", "minLength": 2, "maxLength": 8},
        lambda: {"type": "string", "pattern": choose.choice(PATTERNS)},
        lambda: {"type": "string", "enum": choose.sample(WORDS, choose.randint(1, 4))},
        lambda: {"type": "string", "format": choose.choice(["date", "uuid", "ipv4"])},
        lambda: {"type": "integer", "minimum": -5, "maximum": choose.randint(0, 2000)},
        lambda: {"type": "number", "minimum": 0, "exclusiveMaximum": 1, "multipleOf": 0.25},
        lambda: {"type": "boolean"},
        lambda: {"type": "null"},
        lambda: {"const": choose.choice([*WORDS, 7, None, True])},
        lambda: {"enum": [1, "two", None, False]},
    ]
    return choose.choice(kinds)()


def array(choose: random.Random, depth: int) -> Schema:
    least = choose.randint(0, 2)
    return {
        "type": "array",
        "items": value(choose, depth - 1),
        "minItems": least,
        "maxItems": least + choose.randint(0, 2),
    }


def record(choose: random.Random, depth: int) -> Schema:
    names = choose.sample(NAMES, choose.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: value(choose, depth - 1) for name in names},
        "required": choose.sample(names, choose.randint(0, len(names))),
        "additionalProperties": False,
    }


def value(choose: random.Random, depth: int) -> Schema:
    if depth <= 0:
        return scalar(choose)
    kinds: list[Callable[[], Schema]] = [
        lambda: scalar(choose),
        lambda: scalar(choose),
        lambda: array(choose, depth),
        lambda: record(choose, depth),
        lambda: {"anyOf": [record(choose, depth - 1), {"type": "null"}]},
        lambda: {"anyOf": [{"type": "boolean"}, array(choose, depth - 1)]},
    ]
    return choose.choice(kinds)()


def with_definitions(choose: random.Random) -> Schema:
    """As pydantic writes nested models."""
    return {
        "$defs": {"Part": record(choose, 1), "Kind": {"enum": ["small", "large"]}},
        "type": "object",
        "title": "Whole",
        "properties": {
            "kind": {"$ref": "#/$defs/Kind"},
            "first": {"$ref": "#/$defs/Part"},
            "others": {"type": "array", "items": {"$ref": "#/$defs/Part"}, "maxItems": 2},
        },
        "required": ["kind", "first", "others"],
        "additionalProperties": False,
    }


def schemas(count: int, seed: int) -> list[Schema]:
    choose = random.Random(seed)
    tops: list[Callable[[], Schema]] = [
        lambda: record(choose, 2),
        lambda: record(choose, 3),
        lambda: array(choose, 2),
        lambda: with_definitions(choose),
    ]
    return [tops[i % len(tops)]() for i in range(count)]
