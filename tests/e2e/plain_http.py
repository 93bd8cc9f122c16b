"""httpx for servers that speak no TLS, as all of ours and the test's own do.

A client of httpx's defaults reads every certificate there is, 30 ms of a core each.
"""

from __future__ import annotations

import ssl
from typing import Any

import httpx

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client(url: str, timeout: float = 120) -> httpx.Client:
    """A client of the server at `url`, to be closed."""
    return httpx.Client(base_url=url, timeout=timeout, verify=_NO_TLS, trust_env=False)


def get(url: str, **options: Any) -> httpx.Response:
    """One GET by a client of its own."""
    return httpx.get(url, verify=_NO_TLS, trust_env=False, **options)


def post(url: str, **options: Any) -> httpx.Response:
    """One POST by a client of its own."""
    return httpx.post(url, verify=_NO_TLS, trust_env=False, **options)
