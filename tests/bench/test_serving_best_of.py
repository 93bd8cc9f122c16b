"""The defaults beside fixed settings: which settings there are, and cells that are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.serving import best_of, cells
from bench.serving.cells import Cell, Found, seed_of

CELL = Cell("shared", 0.0, "code", 4)


def found(**rates: list[float]) -> Found:
    return Found(CELL, rates, dict.fromkeys(rates, 0.0))


def test_the_default_is_beside_the_best_of_the_others() -> None:
    one = found(default=[9.0, 9.0], plain=[3.0, 3.0], lookup=[4.0, 4.0], slow=[99.0])
    assert best_of.best_fixed(one) == "lookup"
    over = "2.25 [2.25, 2.25]"
    assert f"| lookup | {over} | {over} | 3.00 [3.00, 3.00] |  |" in best_of.row(one)


def test_the_defaults_again_are_no_fixed_setting() -> None:
    one = found(default=[9.0, 9.0], again=[18.0, 18.0], plain=[3.0, 3.0])
    assert best_of.best_fixed(one) == "plain"
    assert best_of.row(one).endswith("| 2.00 [2.00, 2.00] |")


def test_auto_is_beside_the_better_of_its_two_methods() -> None:
    rates = {"default": [9.0], "plain": [3.0], "traversal": [10.0], "auto": [8.0]}
    greedy, sampled = (
        Found(Cell("shared", temperature, "code", 4), rates, dict.fromkeys(rates, 0.0))
        for temperature in (0.0, 1.0)
    )
    assert "auto /" not in best_of.overview([greedy])
    assert "auto / the better method: geometric mean 0.80" in best_of.overview([greedy, sampled])


def test_every_fixed_setting_is_there_and_the_default_has_no_flag() -> None:
    settings = {setting.name: setting for setting in best_of.settings_of(("1,1", "best:8:4:4"))}
    assert settings["default"].flags == ()
    assert settings["best:8:4:4+ahead"].flags == ("--tree=best:8:4:4", "--ahead=true")
    assert not settings["plain"].drafts
    assert len(settings) == 8 + 2 * 2


def test_cells_and_rounds_have_requests_of_their_own() -> None:
    other_cells = [
        Cell("apart", 0.0, "code", 4),
        Cell("shared", 1.0, "code", 4),
        Cell("shared", 0.0, "chat", 4),
        Cell("shared", 0.0, "code", 1),
    ]
    seeds = [seed_of(cell, number, 3) for cell in [CELL, *other_cells] for number in (-1, 0, 1)]
    assert len({tuple(seed) for seed in seeds}) == 15
    assert min(min(seed) for seed in seeds) >= 0


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    def record() -> cells.Record:
        return cells.Record(tmp_path / "out" / "x.json", "header", best_of.row, best_of.picture)

    first = record()
    assert first.missing([CELL]) == [CELL]
    first.add(found(default=[9.0, 8.0], plain=[3.0, 3.5]))
    capsys.readouterr()
    second = record()
    assert second.found == first.found
    assert second.missing([CELL, Cell("shared", 1.0, "code", 4)]) == [
        Cell("shared", 1.0, "code", 4)
    ]
    assert capsys.readouterr().out.splitlines() == ["header", best_of.row(first.found[0])]
    assert (tmp_path / "out" / "x.svg").read_text().startswith("<svg")


def test_sets_of_servers_add_up() -> None:
    first = found(default=[9.0, 8.0], plain=[3.0, 3.0], slow=[1.0])
    second = Found(CELL, {"default": [7.0, 6.0], "plain": [4.0, 4.0]}, {"default": 2.0, "plain": 0})
    both = cells.joined([first, second])
    assert both.rates == {"default": [9, 8, 7, 6], "plain": [3, 3, 4, 4], "slow": [1]}
    assert both.accepted == {"default": 1.0, "plain": 0.0, "slow": 0.0}
    assert cells.joined([first]) == first
