"""Sixty prompts in the language of the demo models: the beginnings of Python files."""

from __future__ import annotations

_HEADS = [
    "import os\nimport sys\n\n\ndef {name}(",
    '"""A module that keeps {name} records."""\n\nimport ',
    "class {Name}:\n    def __init__(self, ",
    "class {Name}(Exception):\n    ",
    "def test_{name}(self):\n        self.assertEqual(",
    "for {name} in range(10):\n    if ",
    "    try:\n        {name} = open(path)\n    except ",
    "from collections import {name}\n\n__all__ = [",
    "    @property\n    def {name}(self):\n        return ",
    "# Copyright (C) the {name} authors\n#\n",
    'def {name}(value, default=None):\n    """Return ',
    "    while {name} is not None:\n        ",
]
_NAMES = ["parser", "queue", "socket", "token", "address"]

PROMPTS = [head.format(name=name, Name=name.title()) for head in _HEADS for name in _NAMES]
assert len(PROMPTS) == 60
