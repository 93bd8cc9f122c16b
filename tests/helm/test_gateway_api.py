"""Clients by the Gateway API: an HTTPRoute, and an InferencePool of the gateways."""

from __future__ import annotations

from rendered_chart import Document, find, find_all, main_container, render, roles

ROUTE: Document = {
    "gateway": {
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "front", "namespace": "infra", "sectionName": "https"}],
            "hostnames": ["llm.example"],
            "timeouts": {"request": "0s"},
            "annotations": {"example.com/team": "llm"},
        }
    }
}
POOL: Document = {
    "gateway": {"inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}}}
}


def test_a_route_leads_to_the_gateways_service() -> None:
    documents = render("laptop", ROUTE, {"gateway": {"service": {"port": 8080}}})
    route = find(documents, "HTTPRoute", "-gateway")
    assert route["metadata"]["annotations"] == {"example.com/team": "llm"}
    spec = route["spec"]
    assert spec["parentRefs"] == ROUTE["gateway"]["httpRoute"]["parentRefs"]
    assert spec["hostnames"] == ["llm.example"]
    [rule] = spec["rules"]
    # /metrics and the like stay inside, as with the Ingress.
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/v1"}}]
    assert rule["timeouts"] == {"request": "0s"}
    [backend] = rule["backendRefs"]
    service = find(documents, "Service", "-gateway")
    assert backend == {"name": service["metadata"]["name"], "port": 8080}
    assert service["spec"]["ports"][0]["port"] == 8080


def test_a_pool_has_the_gateways_and_nobody_else() -> None:
    documents = render("infiniband", POOL)
    pool = find(documents, "InferencePool", "-gateway")
    selector = pool["spec"]["selector"]["matchLabels"]
    members = [
        main_container(d)["name"]
        for d in roles(documents)
        if selector.items() <= d["spec"]["template"]["metadata"]["labels"].items()
    ]
    assert members == ["gateway"]
    [port] = pool["spec"]["targetPorts"]
    ports = main_container(find(documents, "Deployment", "-gateway"))["ports"]
    assert port["number"] == next(p["containerPort"] for p in ports if p["name"] == "http")


def test_the_endpoint_picker_is_a_value() -> None:
    def reference(**picker: object) -> Document:
        documents = render(
            "laptop", POOL, {"gateway": {"inferencePool": {"endpointPicker": picker}}}
        )
        found: Document = find(documents, "InferencePool", "-gateway")["spec"]["endpointPickerRef"]
        return found

    assert reference() == {"name": "picker", "port": {"number": 9002}, "failureMode": "FailOpen"}
    assert reference(name="other", port=9003, failureMode="FailClose") == {
        "name": "other",
        "port": {"number": 9003},
        "failureMode": "FailClose",
    }


def test_a_route_leads_to_the_pool_where_there_is_one() -> None:
    documents = render("laptop", ROUTE, POOL)
    [rule] = find(documents, "HTTPRoute", "-gateway")["spec"]["rules"]
    [backend] = rule["backendRefs"]
    pool = find(documents, "InferencePool", "-gateway")
    group = pool["apiVersion"].split("/")[0]
    assert backend == {"group": group, "kind": pool["kind"], "name": pool["metadata"]["name"]}


def test_neither_is_there_unless_wanted() -> None:
    for name in ("laptop", "infiniband"):
        documents = render(name)
        assert not find_all(documents, "HTTPRoute") + find_all(documents, "InferencePool")
