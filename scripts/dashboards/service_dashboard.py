"""What clients see."""

from __future__ import annotations

from dashboard import Dashboard, Panel, Query, Row, percentiles, rates, share, stat

COMPLETIONS = 'endpoint=~"/v1/.*completions"'
REQUESTS = "specfabric_gateway_requests_total"

SERVICE = Dashboard(
    "specfabric-service",
    "SpecFabric / Service",
    "What clients see: how much is asked, how soon it is answered, and what stands in the way.",
    [
        Row(
            "At a glance",
            [
                stat(
                    "Requests",
                    "reqps",
                    "Completions and chats answered a second, whatever the answer.",
                    f"sum(rate({REQUESTS}{{$S,{COMPLETIONS}}}[$R]))",
                ),
                stat(
                    "Errors",
                    "percentunit",
                    "Share of them answered with 5xx. The objective is at most 0.5 %.",
                    share(
                        f'{REQUESTS}{{$S,{COMPLETIONS},code=~"5.."}}',
                        f"{REQUESTS}{{$S,{COMPLETIONS}}}",
                    ),
                ),
                stat(
                    "First token (p95)",
                    "s",
                    "Request to first token of a choice. The objective is 95 % within 2 s.",
                    percentiles("specfabric_gateway_time_to_first_token_seconds", [0.95])[0].expr,
                ),
                stat(
                    "Time a token (p95)",
                    "s",
                    "Mean over a choice's tokens after the first. The objective is 95 % within "
                    "64 ms.",
                    percentiles("specfabric_gateway_time_per_output_token_seconds", [0.95])[0].expr,
                ),
                stat(
                    "Targets up",
                    "short",
                    "Targets that take work, as the gateway that sees fewest of them counts.",
                    "min(specfabric_gateway_targets_up{$S})",
                ),
                stat(
                    "Draft workers",
                    "short",
                    "Draft workers that take requests, as the target that sees fewest counts.",
                    "min(specfabric_target_draft_workers{$S})",
                ),
            ],
        ),
        Row(
            "Requests",
            [
                Panel(
                    "Answers by status",
                    "reqps",
                    "HTTP answers a second. 499: the client closed first; 429: no room; 503: no "
                    "target, or draining; 504: its time was up.",
                    [Query(f"sum by (code) (rate({REQUESTS}{{$S}}[$R]))", "{{code}}")],
                    stacked=True,
                ),
                Panel(
                    "In flight",
                    "short",
                    "Completions and chats being answered, by gateway.",
                    [Query("specfabric_gateway_requests_in_flight{$S}", "{{instance}}")],
                    stacked=True,
                ),
                Panel(
                    "Interruptions",
                    "cps",
                    "Clients that left before their answer was complete; choices sent again "
                    "because their target was lost; targets left because they hung; sequences "
                    "cancelled at targets. All but the first should be rare.",
                    rates(
                        "clients gone|sent again|targets that hung|cancelled",
                        "specfabric_gateway_client_disconnects_total",
                        "specfabric_gateway_resubmissions_total",
                        "specfabric_gateway_stalled_targets_total",
                        "specfabric_cancelled_total",
                    ),
                ),
            ],
        ),
        Row(
            "Latency",
            [
                Panel(
                    "Time to first token",
                    "s",
                    "Request to first token of a choice (TTFT): queue, prefill and one round.",
                    percentiles(
                        "specfabric_gateway_time_to_first_token_seconds", [0.5, 0.95, 0.99]
                    ),
                    width=6,
                ),
                Panel(
                    "Time per output token",
                    "s",
                    "Mean over a choice's tokens after the first (TPOT): what speculation "
                    "shortens.",
                    percentiles(
                        "specfabric_gateway_time_per_output_token_seconds", [0.5, 0.95, 0.99]
                    ),
                    width=6,
                ),
                Panel(
                    "Between deliveries",
                    "s",
                    "Between two deliveries of a choice's tokens (ITL): about one round. A round "
                    "may deliver several tokens, so this is longer than the time per token.",
                    percentiles(
                        "specfabric_gateway_inter_token_latency_seconds", [0.5, 0.95, 0.99]
                    ),
                    width=6,
                ),
                Panel(
                    "Whole answers",
                    "s",
                    "Request to the end of its answer.",
                    percentiles("specfabric_gateway_request_duration_seconds", [0.5, 0.95, 0.99]),
                    width=6,
                ),
            ],
        ),
        Row(
            "Load",
            [
                Panel(
                    "Tokens",
                    "cps",
                    "Prompt tokens accepted and output tokens emitted a second.",
                    [
                        Query(
                            "sum by (kind) (rate(specfabric_gateway_tokens_total{$S}[$R]))",
                            "{{kind}}",
                        )
                    ],
                ),
                Panel(
                    "Running and waiting",
                    "short",
                    "Sequences in the batches and in the queues of the targets. A queue half as "
                    "long as the batch makes who comes now wait half as long as an answer takes.",
                    [
                        Query("sum(specfabric_target_running_sequences{$S})", "running"),
                        Query("sum(specfabric_target_waiting_sequences{$S})", "waiting"),
                        Query("sum(specfabric_target_max_sequences{$S})", "room in the batches"),
                    ],
                ),
                Panel(
                    "KV memory in use",
                    "percentunit",
                    "Share of a target's KV blocks that sequences hold. Cached blocks count as "
                    "free: they give way.",
                    [
                        Query(
                            "specfabric_target_kv_blocks_used{$S} "
                            "/ (specfabric_target_kv_blocks_used{$S} "
                            "+ specfabric_target_kv_blocks_free{$S})",
                            "{{instance}}",
                        )
                    ],
                    maximum=1,
                ),
                Panel(
                    "Prefix cache",
                    "percentunit",
                    "Share of the prompt tokens looked for that were found computed.",
                    [
                        Query(
                            share(
                                "specfabric_prefix_cache_hits_total{$S}",
                                "specfabric_prefix_cache_queries_total{$S}",
                            ),
                            "found",
                        )
                    ],
                    maximum=1,
                ),
                Panel(
                    "Preemptions",
                    "cps",
                    "Sequences a second that gave up their KV blocks for others, to be computed "
                    "again. More than a few a minute: too much is admitted for the memory.",
                    [
                        Query(
                            "sum by (instance) (rate(specfabric_preemptions_total{$S}[$R]))",
                            "{{instance}}",
                        )
                    ],
                ),
                Panel(
                    "Processes",
                    "short",
                    "Processes that are scraped, by role and version.",
                    [
                        Query(
                            "count by (role, version) (specfabric_build_info{$S})",
                            "{{role}} {{version}}",
                        )
                    ],
                ),
            ],
        ),
    ],
)
