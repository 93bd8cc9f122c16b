"""Whether speculation pays, the proposal sources, and what becomes of draft tokens."""

from __future__ import annotations

from dashboard import Dashboard, Panel, Query, Row, percentiles, rates, share, stat

DRAFTS = "specfabric_drafts_total{$S}"

SPECULATION = Dashboard(
    "specfabric-speculation",
    "SpecFabric / Speculation",
    "Whether speculation pays, the proposal sources, and what becomes of draft tokens.",
    [
        Row(
            "At a glance",
            [
                stat(
                    "Tokens a round",
                    "short",
                    "Tokens that a round of a sequence yields. 1 without speculation.",
                    share(
                        'specfabric_tokens_total{$S,kind="output"}', "specfabric_rounds_total{$S}"
                    ),
                ),
                stat(
                    "Rounds with draft tokens",
                    "percentunit",
                    "Share of the rounds that verified draft tokens. A busy target drafts less, "
                    "because that pays more.",
                    share(DRAFTS, "specfabric_rounds_total{$S}"),
                ),
                stat(
                    "First draft token accepted",
                    "percentunit",
                    "Of the rounds with draft tokens, those whose first was accepted.",
                    share('specfabric_accepted_tokens_per_position_total{$S,position="0"}', DRAFTS),
                ),
                stat(
                    "Rounds without their draft",
                    "percentunit",
                    "Share of the rounds that went without the draft they had asked for.",
                    share("specfabric_draft_misses_total{$S}", "specfabric_rounds_total{$S}"),
                ),
                stat(
                    "Draft slots in use",
                    "percentunit",
                    "Of the slots for sequences at drafts, those in use. Scale the pool to keep "
                    "it near 70 %.",
                    "sum(specfabric_draft_sessions{$S}) "
                    "/ sum(specfabric_draft_session_capacity{$S})",
                ),
                stat(
                    "Output",
                    "cps",
                    "Output tokens a second of all targets.",
                    'sum(rate(specfabric_tokens_total{$S,kind="output"}[$R]))',
                ),
            ],
        ),
        Row(
            "What speculation yields",
            [
                Panel(
                    "Goodput",
                    "cps",
                    "Output tokens a second, by where they come from: accepted "
                    "draft tokens, and the "
                    "one that each round yields anyway.",
                    rates(
                        "accepted draft tokens|one a round",
                        "specfabric_accepted_tokens_total",
                        "specfabric_rounds_total",
                    ),
                    stacked=True,
                ),
                Panel(
                    "Tokens a round by target",
                    "short",
                    "Tokens that a round of a sequence yields, by target.",
                    [
                        Query(
                            "sum by (instance) "
                            '(rate(specfabric_tokens_total{$S,kind="output"}[$R]))'
                            " / sum by (instance) (rate(specfabric_rounds_total{$S}[$R]))",
                            "{{instance}}",
                        )
                    ],
                ),
                Panel(
                    "Accepted, by depth",
                    "percentunit",
                    "Of the rounds with draft tokens, those in which a draft "
                    "token of this depth was "
                    "accepted (0: the first). Trees are not always so deep.",
                    [
                        Query(
                            "sum by (position) (rate(specfabric_accepted_tokens_per_position_total"
                            '{$S,position=~"[0-7]"}[$R])) '
                            f"/ on () group_left sum(rate({DRAFTS}[$R]))",
                            "{{position}}",
                        )
                    ],
                    maximum=1,
                ),
                Panel(
                    "Draft tokens verified",
                    "cps",
                    "Draft tokens that targets verified a second. What is not "
                    "accepted costs rows of "
                    "the forward pass: little while weights bound it.",
                    [
                        Query("sum(rate(specfabric_accepted_tokens_total{$S}[$R]))", "accepted"),
                        Query(
                            "sum(rate(specfabric_drafted_tokens_total{$S}[$R])) "
                            "- sum(rate(specfabric_accepted_tokens_total{$S}[$R]))",
                            "not accepted",
                        ),
                    ],
                    stacked=True,
                ),
                Panel(
                    "Verifications by method",
                    "cps",
                    (
                        "Trees verified a second, by how draft tokens are accepted. "
                        "`typical` is lossy."
                    ),
                    [
                        Query(
                            "sum by (verification) (rate(specfabric_verifications_total{$S}[$R]))",
                            "{{verification}}",
                        )
                    ],
                    stacked=True,
                ),
                Panel(
                    "Steps by use of drafters",
                    "cps",
                    "Steps a second with drafters not used, asked just in time, or drafting ahead; "
                    "and those of them that only measure what another use yields.",
                    [
                        Query(
                            "sum by (mode) (rate(specfabric_drafting_steps_total{$S}[$R]))",
                            "{{mode}}",
                        ),
                        *rates("trials", "specfabric_drafting_trial_steps_total"),
                    ],
                ),
                Panel(
                    "Yield of each use of drafters",
                    "none",
                    "Tokens a second over plain decoding's that are expected at the present load, "
                    "mean of the targets. 0: not known.",
                    [Query("avg by (mode) (specfabric_drafting_yield{$S})", "{{mode}}")],
                ),
                Panel(
                    "Rounds without draft tokens",
                    "cps",
                    "Why rounds a second went without the draft tokens of a "
                    "worker: it missed its time, "
                    "or waiting for it did not pay; and replies that were of no use.",
                    [
                        *rates(
                            "missed|waiting did not pay|came late",
                            "specfabric_draft_misses_total",
                            "specfabric_draft_skips_total",
                            "specfabric_late_drafts_total",
                        ),
                        Query(
                            "sum by (reason) (rate(specfabric_refused_drafts_total{$S}[$R]))",
                            "refused: {{reason}}",
                        ),
                        Query(
                            "sum by (status) "
                            '(rate(specfabric_draft_replies_total{$S,status!="ok"}[$R]))',
                            "answered {{status}}",
                        ),
                    ],
                ),
            ],
        ),
        Row(
            "Proposal sources",
            [
                Panel(
                    "Rounds by draft model",
                    "percentunit",
                    "Part of the last rounds for which a draft model was chosen, mean of the "
                    "targets.",
                    [Query("avg by (drafter) (specfabric_drafter_share{$S})", "{{drafter}}")],
                    maximum=1,
                ),
                Panel(
                    "Accepted draft tokens by drafter",
                    "cps",
                    "Accepted draft tokens a second by who made them. What "
                    "several proposed counts for "
                    "each.",
                    [
                        Query(
                            "sum by (drafter) "
                            "(rate(specfabric_drafter_accepted_tokens_total{$S}[$R]))",
                            "{{drafter}}",
                        )
                    ],
                ),
                Panel(
                    "Verified draft tokens accepted, by drafter",
                    "percentunit",
                    "Of the draft tokens of a drafter that were verified, those "
                    "accepted. Wide trees "
                    "have less of it without being worse.",
                    [
                        Query(
                            "sum by (drafter) "
                            "(rate(specfabric_drafter_accepted_tokens_total{$S}[$R])) "
                            "/ (sum by (drafter) "
                            "(rate(specfabric_drafter_drafted_tokens_total{$S}[$R])) > 0)",
                            "{{drafter}}",
                        )
                    ],
                    maximum=1,
                ),
            ],
        ),
        Row(
            "The draft pool",
            [
                Panel(
                    "Sessions",
                    "short",
                    "Sequences that drafts hold, and the slots they have for them.",
                    [
                        Query("sum(specfabric_draft_sessions{$S})", "in use"),
                        Query("sum(specfabric_draft_session_capacity{$S})", "slots"),
                    ],
                ),
                Panel(
                    "Requests by answer",
                    "reqps",
                    "Draft requests a second by what they were answered with. `busy`: no room; "
                    "`need_resync`: the draft had to be told the text again.",
                    [
                        Query(
                            "sum by (status) (rate(specfabric_draft_requests_total{$S}[$R]))",
                            "{{status}}",
                        )
                    ],
                    stacked=True,
                ),
                Panel(
                    "Time of a draft",
                    "s",
                    "Receipt of a draft request to its reply, at the draft.",
                    percentiles("specfabric_draft_seconds", [0.5, 0.95, 0.99]),
                ),
                Panel(
                    "Drafted ahead",
                    "percentunit",
                    "Of the trees whose text went on, those whose next root had been run before "
                    "the draft was told (hit rate); of the requests, those answered without a "
                    "pass of the model.",
                    [
                        Query(
                            share(
                                'specfabric_draft_ahead_outcomes_total{$S,outcome="hit"}',
                                "specfabric_draft_ahead_outcomes_total{$S}",
                            ),
                            "hit",
                        ),
                        Query(
                            share(
                                "specfabric_draft_ready_replies_total{$S}",
                                "specfabric_draft_requests_total{$S}",
                            ),
                            "ready replies",
                        ),
                    ],
                    maximum=1,
                ),
                Panel(
                    "Outcomes of drafting ahead",
                    "cps",
                    "Trees a second whose text went on, by whether the next root had been run: "
                    "hit; a candidate, not run; no candidate; not even its parent was run.",
                    [
                        Query(
                            "sum by (outcome) "
                            "(rate(specfabric_draft_ahead_outcomes_total{$S}[$R]))",
                            "{{outcome}}",
                        )
                    ],
                    stacked=True,
                ),
                Panel(
                    "Passes of the draft models",
                    "cps",
                    "Passes a second while a target waited, and ahead of the outcomes.",
                    rates(
                        "while a target waited|ahead",
                        "specfabric_draft_passes_total",
                        "specfabric_draft_ahead_passes_total",
                    ),
                    stacked=True,
                ),
                Panel(
                    "Sessions evicted",
                    "cps",
                    "Sessions a second that ended before their sequence: their place was needed "
                    "(lru), idle for too long (ttl), their target ended (purge).",
                    [
                        Query(
                            "sum by (reason) (rate(specfabric_draft_evictions_total{$S}[$R]))",
                            "{{reason}}",
                        )
                    ],
                ),
                Panel(
                    "Latency of the workers",
                    "s",
                    "Smoothed time from a request to its draft, as each target sees each worker.",
                    [
                        Query(
                            "specfabric_target_worker_latency_seconds{$S}",
                            "{{worker}} from {{instance}}",
                        )
                    ],
                ),
                Panel(
                    "Sequences of the workers",
                    "short",
                    "Sequences that each worker drafts for, all targets together.",
                    [
                        Query(
                            "sum by (worker, model) (specfabric_target_worker_sequences{$S})",
                            "{{worker}} {{model}}",
                        )
                    ],
                    stacked=True,
                ),
            ],
        ),
    ],
)
