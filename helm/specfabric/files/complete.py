"""Asks a gateway for one completion and says what came; the exit status is 1 if none came."""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="of the gateway, without a path")
    parser.add_argument("--model", required=True, help="name of the model in the API")
    parser.add_argument("--prompt", default="def main():\n")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--timeout", type=float, default=120)
    options = parser.parse_args()
    body = {"model": options.model, "prompt": options.prompt, "max_tokens": options.tokens}
    request = urllib.request.Request(
        f"{options.url}/v1/completions",
        json.dumps({**body, "ignore_eos": True}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=options.timeout) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        print(f"{request.full_url}: {error.code} {error.read().decode(errors='replace')}")
        return 1
    except OSError as error:
        print(f"{request.full_url}: {error}")
        return 1
    came = answer.get("usage", {}).get("completion_tokens")
    if came != options.tokens:
        print(f"asked for {options.tokens} tokens, got {came}: {json.dumps(answer)}")
        return 1
    print(json.dumps(answer["choices"][0]["text"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
