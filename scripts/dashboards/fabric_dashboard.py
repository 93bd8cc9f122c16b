"""Where a round's time goes, and how the processes reach each other."""

from __future__ import annotations

from dashboard import Dashboard, Panel, Query, Row, rates


def mean_span(span: str) -> str:
    return (
        f'sum(rate(specfabric_round_span_seconds_sum{{$S,span="{span}"}}[$R])) '
        f'/ sum(rate(specfabric_round_span_seconds_count{{$S,span="{span}"}}[$R]))'
    )


FABRIC = Dashboard(
    "specfabric-fabric",
    "SpecFabric / Fabric",
    "Where a round's time goes, and how the processes reach each other.",
    [
        Row(
            "Rounds",
            [
                Panel(
                    "Time of a round",
                    "s",
                    "Means of its spans, on top of each other: the draft's computing, its way "
                    "there and back, what else the sequence waited for its draft, then planning, "
                    "the forward pass, verifying and committing. Sequences overlap: while one "
                    "waits for its draft, others are computed.",
                    [
                        Query(mean_span("draft_compute"), "draft_compute"),
                        Query(mean_span("transfer"), "transfer"),
                        Query(
                            f"clamp_min({mean_span('draft_wait')} - {mean_span('draft_compute')} "
                            f"- {mean_span('transfer')}, 0)",
                            "rest of draft_wait",
                        ),
                        *[
                            Query(mean_span(span), span)
                            for span in ("plan", "forward", "verify", "commit")
                        ],
                    ],
                    stacked=True,
                    width=12,
                ),
                Panel(
                    "Spans (p95)",
                    "s",
                    "Time of each span that 95 % of them stay below.",
                    [
                        Query(
                            "histogram_quantile(0.95, sum by (le, span) "
                            "(rate(specfabric_round_span_seconds_bucket{$S}[$R])))",
                            "{{span}}",
                        )
                    ],
                    width=6,
                ),
                Panel(
                    "Transfer time",
                    "s",
                    "A draft request's way to the draft and its reply's way back: what the fabric "
                    "takes of a round, with the time in queues at both ends.",
                    [
                        Query(
                            f"histogram_quantile({q}, sum by (le) "
                            '(rate(specfabric_round_span_seconds_bucket{$S,span="transfer"}[$R])))',
                            f"p{q * 100:g}",
                        )
                        for q in (0.5, 0.95, 0.99)
                    ],
                    width=6,
                ),
            ],
        ),
        Row(
            "Connections",
            [
                Panel(
                    "By wire",
                    "short",
                    "Open connections by what carries them, each counted at both ends. "
                    "`rc_`, `dc_`, `ud_`: RDMA; `.../memory`: one machine; `tcp/`: neither.",
                    [
                        Query(
                            "sum by (wire) (specfabric_fabric_connections{$S})",
                            "{{wire}}",
                        )
                    ],
                    stacked=True,
                ),
                Panel(
                    "By process and wire",
                    "short",
                    "Open connections of each process, by what carries them.",
                    [
                        Query(
                            "specfabric_fabric_connections{$S}",
                            "{{instance}} {{wire}}",
                        )
                    ],
                ),
                Panel(
                    "Addresses kept connected",
                    "short",
                    "Addresses of peers that each process was given or has looked up.",
                    [Query("specfabric_fabric_addresses{$S}", "{{instance}}")],
                ),
                Panel(
                    "Connections opened and closed",
                    "cps",
                    "Connections a second that opened, closed, could not be opened, or were "
                    "opened again after a loss.",
                    rates(
                        "opened|closed|could not be opened|opened again",
                        "specfabric_fabric_connections_opened_total",
                        "specfabric_fabric_connections_closed_total",
                        "specfabric_fabric_connect_failures_total",
                        "specfabric_fabric_reconnects_total",
                    ),
                ),
                Panel(
                    "Refused peers",
                    "cps",
                    "Peers a second that did not prove the join secret, came by a wire that is "
                    "not allowed, or were of another version, vocabulary or tokenizer.",
                    rates(
                        "join secret|wire|hello",
                        "specfabric_fabric_refused_secrets_total",
                        "specfabric_fabric_non_rdma_connections_total",
                        "specfabric_fabric_refused_hellos_total",
                    ),
                ),
                Panel(
                    "Lost peers",
                    "cps",
                    "Peers a second given up for their silence; restarts of UCX; look-ups of a "
                    "name without an address.",
                    rates(
                        "silent|restarts of UCX|look-ups failed",
                        "specfabric_fabric_silent_peers_total",
                        "specfabric_fabric_restarts_total",
                        "specfabric_fabric_lookup_failures_total",
                    ),
                ),
            ],
        ),
        Row(
            "Traffic",
            [
                Panel(
                    "Bytes sent",
                    "Bps",
                    "Payload that each process sends.",
                    [
                        Query(
                            'rate(specfabric_fabric_bytes_total{$S,direction="sent"}[$R])',
                            "{{instance}}",
                        )
                    ],
                    stacked=True,
                ),
                Panel(
                    "Bytes by peer and wire",
                    "Bps",
                    "Payload that connections carry, both ways, by who is at the other end and by "
                    "their wire. Each is counted at both ends.",
                    [
                        Query(
                            "sum by (peer, role, wire) "
                            "(rate(specfabric_fabric_peer_bytes_total{$S}[$R]))",
                            "{{role}} {{peer}} {{wire}}",
                        )
                    ],
                    stacked=True,
                ),
                Panel(
                    "Frames sent",
                    "cps",
                    "Frames that each process sends.",
                    [
                        Query(
                            'rate(specfabric_fabric_frames_total{$S,direction="sent"}[$R])',
                            "{{instance}}",
                        )
                    ],
                    stacked=True,
                ),
                Panel(
                    "Bytes received and copied",
                    "Bps",
                    "Payload received, and what of it the transport itself had to copy: small "
                    "messages always, large tensors only where UCX cannot put them into their "
                    "slots.",
                    [
                        Query(
                            'sum(rate(specfabric_fabric_bytes_total{$S,direction="received"}[$R]))',
                            "received",
                        ),
                        Query("sum(rate(specfabric_fabric_bytes_copied_total{$S}[$R]))", "copied"),
                    ],
                ),
                Panel(
                    "Tensors",
                    "cps",
                    "Tensors received (distributions of drafts, for the "
                    "verification methods that read "
                    "them), and those dropped: too late to be waited for, without a slot, given "
                    "up under way.",
                    [
                        Query(
                            "sum(rate(specfabric_fabric_tensors_total"
                            '{$S,direction="received"}[$R]))',
                            "received",
                        ),
                        *rates(
                            "stale|no slot|given up",
                            "specfabric_fabric_stale_tensors_total",
                            "specfabric_fabric_refused_tensors_total",
                            "specfabric_fabric_late_tensors_total",
                        ),
                    ],
                ),
                Panel(
                    "Errors",
                    "cps",
                    "Frames a second that could not be sent, were refused, did not decode, named "
                    "no connection, found no room at a slow peer, or were "
                    "changed by fault injection "
                    "(SPECFABRIC_TEST_HOOKS).",
                    rates(
                        "not sent|refused|malformed|unattributed|back pressure|injected",
                        "specfabric_fabric_send_errors_total",
                        "specfabric_fabric_refused_frames_total",
                        "specfabric_fabric_malformed_messages_total",
                        "specfabric_fabric_unattributed_frames_total",
                        "specfabric_fabric_back_pressure_total",
                        "specfabric_fabric_injected_faults_total",
                    ),
                ),
                Panel(
                    "Registered memory",
                    "bytes",
                    "Memory registered with UCX that tensors are sent from and received into, for "
                    "the verification methods that read draft probabilities.",
                    [
                        Query(
                            "sum by (instance, memory) (specfabric_fabric_registered_bytes{$S})",
                            "{{instance}} {{memory}}",
                        )
                    ],
                    stacked=True,
                ),
                Panel(
                    "Slots in use",
                    "short",
                    "Slots of that memory that are not free, by what they do. Quarantined: the "
                    "peer is gone, and UCX may still write to them.",
                    [
                        Query(
                            'sum by (state) (specfabric_fabric_slots{$S,state!="free"})',
                            "{{state}}",
                        )
                    ],
                    stacked=True,
                ),
                Panel(
                    "Still releasing",
                    "short",
                    "Closed connections whose registered buffers UCX may still touch: they are "
                    "kept apart until it has called back.",
                    [Query("specfabric_fabric_releasing_connections{$S}", "{{instance}}")],
                ),
                Panel(
                    "Dropped messages",
                    "cps",
                    "Messages a second that are of no use any more: tokens of an attempt that was "
                    "over (gateway), and what a target said of an earlier incarnation's sequences "
                    "(draft). Those for which a draft's queue had no room. And positions whose "
                    "hidden states did not leave, came in vain, or were in tensors that got lost.",
                    rates(
                        "of an earlier attempt|of an earlier incarnation|queue full|"
                        "states not sent|states in vain|tensors of states lost",
                        "specfabric_gateway_stale_messages_total",
                        "specfabric_draft_foreign_messages_total",
                        "specfabric_draft_dropped_messages_total",
                        "specfabric_hidden_states_dropped_total",
                        "specfabric_draft_hidden_states_dropped_total",
                        "specfabric_draft_hidden_states_lost_total",
                    ),
                ),
                Panel(
                    "Spans of traces",
                    "cps",
                    "Spans a second taken for --span_file and --otlp_endpoint, those that came "
                    "faster than they could be written, and those that the file or the collector "
                    "did not take.",
                    rates(
                        "taken|dropped|lost",
                        "specfabric_trace_spans_total",
                        "specfabric_trace_dropped_spans_total",
                        "specfabric_trace_lost_spans_total",
                    ),
                ),
                Panel(
                    "Wake-ups",
                    "cps",
                    "Times a second that the progress thread of a process woke from sleep. None "
                    "under load: it polls.",
                    [Query("rate(specfabric_fabric_wakeups_total{$S}[$R])", "{{instance}}")],
                ),
            ],
        ),
    ],
)
