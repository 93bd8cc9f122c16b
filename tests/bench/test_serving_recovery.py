"""What the benches of drafters count, against known numbers."""

from __future__ import annotations

import json
from pathlib import Path

from bench.serving.placement import bytes_a_token
from bench.serving.recovery import Round, after_token
from cluster import DRAFTERS, TARGET


def test_rounds_from_a_token_on() -> None:
    rounds = [Round(0.0, accepted) for accepted in (2, 0, 3, 1)]  # from tokens 0, 3, 4 and 8 on
    assert after_token(rounds, 0) == [2, 0, 3, 1]
    assert after_token(rounds, 3) == [0, 3, 1]
    assert after_token(rounds, 5) == [1]
    assert after_token(rounds, 9) == []


def test_bytes_of_states_a_token(tmp_path: Path) -> None:
    assert bytes_a_token(DRAFTERS["draft"], TARGET) == 0
    assert bytes_a_token(DRAFTERS["eagle3"], TARGET) == 3 * 256 * 2
    config = {"dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert bytes_a_token(tmp_path, TARGET) == 5 * 256 * 2
