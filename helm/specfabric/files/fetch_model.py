"""Downloads a checkpoint from a hub that speaks Hugging Face's API.

Needs no more than the standard library. Files that are there already, in full, are kept, so that a
container that is started again goes on where it was. Large files are checked against the digest
that the hub lists for them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

WEIGHTS = (".safetensors",)
TEXTS = (".json", ".jinja", ".model", ".txt")
CHUNK = 4 << 20
TRIES = 5


@dataclass
class Remote:
    """One file of the repository, as the hub lists it."""

    path: str
    size: int
    sha256: str | None  # of large files only


class Hub:
    """The few calls that a download takes."""

    def __init__(self, endpoint: str, repository: str, revision: str, token: str | None) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.repository = urllib.parse.quote(repository)
        self.revision = urllib.parse.quote(revision, safe="")
        self.token = token

    def open(self, path: str, headers: dict[str, str] | None = None) -> Any:
        request = urllib.request.Request(f"{self.endpoint}{path}", headers=headers or {})
        if self.token:
            # Not sent on where the hub redirects to a store of its own.
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        return urllib.request.urlopen(request, timeout=60)

    def files(self) -> list[Remote]:
        path = f"/api/models/{self.repository}/tree/{self.revision}?recursive=true"
        with self.open(path) as response:
            listed = json.load(response)
        return [
            Remote(entry["path"], entry["size"], (entry.get("lfs") or {}).get("oid"))
            for entry in listed
            if entry["type"] == "file"
        ]

    def fetch(self, remote: Remote, to: Path) -> None:
        """Brings one file, going on behind what `to` has already."""
        path = f"/{self.repository}/resolve/{self.revision}/{urllib.parse.quote(remote.path)}"
        have = to.stat().st_size if to.exists() else 0
        if have >= remote.size:
            have = 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        with (
            self.open(path, headers) as response,
            to.open("ab" if response.status == 206 else "wb") as file,
        ):
            while chunk := response.read(CHUNK):
                file.write(chunk)


def fail(message: str) -> NoReturn:
    print(f"fetch_model: {message}", file=sys.stderr)
    sys.exit(1)


def is_whole(remote: Remote, file: Path) -> bool:
    if not file.is_file() or file.stat().st_size != remote.size:
        return False
    if remote.sha256 is None:
        return True
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest() == remote.sha256


def bring(hub: Hub, remote: Remote, folder: Path, pause: float) -> None:
    file = folder / remote.path
    if is_whole(remote, file):
        print(f"{remote.path}: there already", flush=True)
        return
    part = file.with_name(f"{file.name}.part")
    why = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(pause * 2**attempt)
        try:
            hub.fetch(remote, part)
        except (OSError, urllib.error.URLError) as error:
            why = str(error)
            continue
        if is_whole(remote, part):
            part.replace(file)
            print(f"{remote.path}: {remote.size} bytes", flush=True)
            return
        why = f"{part.stat().st_size} bytes came that are not the {remote.size} the hub lists"
        if part.stat().st_size >= remote.size:
            part.unlink()
    fail(f"{remote.path}: {why}, {TRIES} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", required=True, help="URL of the hub")
    parser.add_argument("--repository", required=True, help="organisation/name")
    parser.add_argument("--revision", default="main", help="branch, tag or commit")
    parser.add_argument("--folder", required=True, type=Path, help="where the files go")
    parser.add_argument("--without_weights", action="store_true", help="tokenizer and config only")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds before a second try")
    options = parser.parse_args()
    hub = Hub(options.endpoint, options.repository, options.revision, os.environ.get("HUB_TOKEN"))
    try:
        listed = hub.files()
    except urllib.error.HTTPError as error:
        fail(f"{options.repository} at {options.revision}: {error}")
    except (OSError, ValueError, KeyError) as error:
        fail(f"{options.endpoint}: {error}")
    endings = TEXTS if options.without_weights else TEXTS + WEIGHTS
    # A checkpoint is one flat folder; what lies below it is something else's.
    wanted = [f for f in listed if f.path.endswith(endings) and "/" not in f.path]
    if not any(f.path == "config.json" for f in wanted):
        fail(f"{options.repository} at {options.revision} holds no config.json")
    options.folder.mkdir(parents=True, exist_ok=True)
    for remote in wanted:
        bring(hub, remote, options.folder, options.pause)


if __name__ == "__main__":
    main()
