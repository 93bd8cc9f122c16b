"""httpx for servers that speak no TLS, as all of ours and the test's own do.

A client of httpx's defaults reads every certificate there is, 30 ms of a core each.
"""

from __future__ import annotations

import ssl
from typing import Any

import httpx

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client(url: str) -> httpx.Client:
    """A client of the server at `url`, to be closed."""
    return httpx.Client(base_url=url, timeout=120, verify=_NO_TLS, trust_env=False)


def get(url: str, **options: Any) -> httpx.Response:
    """One GET by a client of its own."""
    return httpx.get(url, verify=_NO_TLS, trust_env=False, **options)


def status_of(url: str) -> int:
    """What a GET is answered with; 0 where nobody answers."""
    try:
        return get(url).status_code
    except httpx.TransportError:
        return 0


def post(url: str, **options: Any) -> httpx.Response:
    """One POST by a client of its own."""
    return httpx.post(url, verify=_NO_TLS, trust_env=False, **options)
