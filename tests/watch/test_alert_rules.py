"""The rules are sound, each alert is tested both ways, and each has its runbook."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from watching import RULE_FILES, RULES, RUNBOOKS, alerts, expressions, hasten, load_rules, promtool

UNIT_TESTS = Path(__file__).with_name("rules_test.yaml")
NAMES = sorted({rule["alert"] for rule in alerts()})


def test_promtool_takes_the_rules() -> None:
    result = promtool("check", "rules", "--lint=all", "--lint-fatal", *RULE_FILES)
    assert result.returncode == 0, result.stdout + result.stderr


def test_unit_tests_of_the_rules_pass() -> None:
    result = promtool("test", "rules", UNIT_TESTS)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_broken_alert_fails_its_unit_test(tmp_path: Path) -> None:
    """Alerts are made to be quiet for ever, one at a time: some case must notice.

    One of them; all, which takes ten minutes, with SPECFABRIC_ALL_MUTANTS=1, as in the long tier.
    """
    content = yaml.safe_load((RULES / "alerts.yaml").read_text())
    unit_tests = yaml.safe_load(UNIT_TESTS.read_text())
    unit_tests["rule_files"] = [str(RULES / "recording.yaml"), str(tmp_path / "alerts.yaml")]
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(unit_tests))
    rules = [rule for group in content["groups"] for rule in group["rules"]]
    assert rules
    for rule in rules if os.environ.get("SPECFABRIC_ALL_MUTANTS") else rules[:1]:
        expr = rule["expr"]
        rule["expr"] = f"({expr}) and on () (vector(0) > 1)"
        (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(content))
        result = promtool("test", "rules", tmp_path / "test.yaml")
        assert result.returncode == 1, f"nothing misses {rule['alert']} ({rule['labels']})"
        rule["expr"] = expr


def is_about(expr: str, name: str) -> bool:
    matched = re.search(r'alertname=(~?)"([^"]+)"', expr)
    if matched is None:
        return False
    return bool(re.fullmatch(matched[2], name)) if matched[1] else matched[2] == name


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_is_seen_quiet_and_firing(name: str) -> None:
    cases = [
        case
        for test in yaml.safe_load(UNIT_TESTS.read_text())["tests"]
        for case in test["promql_expr_test"]
        if is_about(case["expr"], name)
    ]
    assert any(not case["exp_samples"] for case in cases), "never expected to be quiet"
    firing = [case for case in cases if case["exp_samples"]]
    assert any("firing" in str(case) for case in firing), "never expected to fire"


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_each_alert_says_what_it_is(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"SpecFabric[A-Z]\w+", rule["alert"])
    assert rule["labels"]["severity"] in ("critical", "warning") or "{{" in str(rule["labels"])
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{rule['alert']}.md"


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_has_a_runbook(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text()
    assert text.startswith(f"# {name}\n")
    for part in ("**Means.**", "**Confirm.**", "**Do.**"):
        assert text.count(part) == 1, part


def test_each_runbook_has_an_alert() -> None:
    assert sorted(path.stem for path in RUNBOOKS.glob("*.md")) == NAMES


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_links_of_runbooks_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert (page.parent / link).is_file(), link


def test_what_runbooks_name_is_on_the_dashboards() -> None:
    """What stands in italics is a dashboard, a panel, a line of one, or a severity."""
    known = {"Service", "Speculation", "Fabric", "critical", "warning"}
    for query in expressions("5m"):
        known |= {query.panel, query.legend}
    for page in RUNBOOKS.glob("*.md"):
        text = re.sub(r"`[^`]*`|\*\*", "", page.read_text())
        text = " ".join(text.split())
        for name in re.findall(r"(?<![*\w])\*([^*]+)\*", text):
            assert name in known, (page.name, name)


def test_hastened_rules_are_the_same_but_for_their_times(tmp_path: Path) -> None:
    windows = dict.fromkeys(["5m", "10m", "30m", "1h", "6h", "1d"], "7s")
    for path in RULE_FILES:
        hasten(path, tmp_path / path.name, windows, "1s")
        for before, after in zip(load_rules(path), load_rules(tmp_path / path.name), strict=True):
            assert re.sub(r"\[\w+\]", "[7s]", before.pop("expr")) == after.pop("expr")
            assert ("for" in before) == ("for" in after)
            before.pop("for", None)
            assert after.pop("for", "1s") == "1s"
            assert before == after
    assert promtool("check", "rules", *tmp_path.glob("*.yaml")).returncode == 0
