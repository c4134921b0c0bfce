#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the pages to the tree: code marked `<!-- excerpt: FILE -->` stands in FILE word for word, relative links and the
paths of the README's tour exist, and every TOML block parses.

    check_docs.py ROOT
"""
import pathlib
import re
import sys
import tomllib

root = pathlib.Path(sys.argv[1]).resolve()
pages = sorted([*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("examples/**/*.md")])
problems = []
counted = {"excerpts": 0, "links": 0, "toml blocks": 0}


def report(page: pathlib.Path, text: str, offset: int, what: str) -> None:
    problems.append(f"{page.relative_to(root)}:{text.count(chr(10), 0, offset) + 1}: {what}")


for page in pages:
    text = page.read_text(encoding="utf-8")
    for marker in re.finditer(r"<!-- excerpt: (\S+) -->\n", text):
        counted["excerpts"] += 1
        block = re.compile(r"```\w*\n(.*?)```\n", re.S).match(text, marker.end())
        source = root / marker[1]
        if not block or not source.is_file():
            report(page, text, marker.start(), f"no block behind the marker, or no file {marker[1]}")
        elif block[1] not in source.read_text(encoding="utf-8"):
            report(page, text, marker.start(), f"this does not stand in {marker[1]}")
    for link in re.finditer(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if re.match(r"[a-z]+:", link[1]):
            continue
        counted["links"] += 1
        if not (page.parent / link[1]).exists():
            report(page, text, link.start(), f"dead link {link[1]}")
    for block in re.finditer(r"```toml\n(.*?)```\n", text, re.S):
        counted["toml blocks"] += 1
        try:
            tomllib.loads(block[1])
        except tomllib.TOMLDecodeError as error:
            report(page, text, block.start(), f"not TOML: {error}")

readme = (root / "README.md").read_text(encoding="utf-8")
for path in re.finditer(r"`((?:abi|sdk|host|plugins|examples|tests|tools)/[\w./-]+)`", readme):
    if not (root / path[1]).exists():
        report(root / "README.md", readme, path.start(), f"there is no {path[1]}")

print(*problems, sep="\n")
print(f"{len(pages)} pages:", ", ".join(f"{n} {what}" for what, n in counted.items()))
sys.exit(bool(problems) or not all(counted.values()))
