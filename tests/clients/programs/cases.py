"""What the programs in this folder share. Each uses one client as its users do, in its own Python:

    python use_NAME.py ANSWER.json BASE_URL MODEL CASE...

The answer: {"versions": {package: version}, "found": {case: what was found}, "failed": {case: a
traceback}}. What is right is for the tests to say (tests/clients/test_frameworks.py).
"""

# No `annotations` from the future: LlamaIndex resolves none that are text.
import importlib.metadata
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

QUESTION = "What is the weather in Paris?"
# Of the model of the tests the end token is the likeliest wherever it is allowed: texts are of 13
# tokens, and end by themselves. These are extensions of ours, which clients send as `extra_body`.
ENDS = {"logit_bias": {"1": 100}, "min_tokens": 12}
MOST = 400  # tokens; no call and no form needs as many

City = Literal["Paris", "Rome"]


class Place(BaseModel):
    """A place on Earth."""

    model_config = ConfigDict(extra="forbid")
    city: City
    country: Literal["France", "Italy"]


class Weather(BaseModel):
    """A forecast. Every form has a bound, because the model says whatever it is allowed to."""

    model_config = ConfigDict(extra="forbid")
    place: Place
    days: Literal[1, 2, 3]
    sunny: bool
    wind: Literal["north", "south"] | None


@dataclass(frozen=True)
class Server:
    url: str  # with /v1
    model: str

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")


# How get_weather was called in a case.
calls: list[dict[str, Any]] = []


def get_weather(city: City, days: Literal[1, 2, 3], sunny: bool) -> str:
    """Tells the weather.

    Args:
        city: Where.
        days: For how many days.
        sunny: Whether the sun has to shine.
    """
    calls.append({"city": city, "days": days, "sunny": sunny})
    return "It is warm."


# For clients that take no function.
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "enum": [1, 2, 3]},
        "sunny": {"type": "boolean"},
    },
    "required": ["city", "days", "sunny"],
    "additionalProperties": False,
}


def told(value: object) -> dict[str, Any]:
    """An object of Weather that a client has made; anything else is no finding."""
    assert isinstance(value, Weather), f"not a Weather: {value!r}"
    return value.model_dump()


def run(packages: Sequence[str], cases: Mapping[str, Callable[[Server], Any]]) -> None:
    answer, url, model, *names = sys.argv[1:]
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in names:
        calls.clear()
        try:
            found[name] = cases[name](Server(url, model))
        except Exception:
            failed[name] = traceback.format_exc()
    versions = {package: importlib.metadata.version(package) for package in packages}
    Path(answer).write_text(json.dumps({"versions": versions, "found": found, "failed": failed}))
