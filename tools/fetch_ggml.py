#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Unpacks ggml's sources for the CPU, a peer of the attention benchmark, from the pinned sources of llama-cpp-python.

    fetch_ggml.py REQUIREMENTS DEST

cmake/Ggml.cmake compiles them in the build folder, for the CPU that the benchmark runs on. pip asks the package for its
metadata, for which it gets that package's build system (scikit-build-core) into a folder of its own; nothing is built. A
stamp makes the second call a no-op; an interrupted call starts again.
"""
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

FOLDERS = ("cmake/", "include/", "src/ggml-cpu/")


def wanted(name: str) -> bool:
    return name.startswith(FOLDERS) or name.removeprefix("src/").count("/") == 0


def main() -> None:
    requirements, dest = sys.argv[1], pathlib.Path(sys.argv[2])
    stamp, pins = dest / "ggml.stamp", pathlib.Path(requirements).read_text()
    if stamp.exists() and stamp.read_text() == pins:
        return
    shutil.rmtree(dest, ignore_errors=True)
    dest.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=dest) as tmp:
        subprocess.check_call([
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-cache-dir",
            "--require-hashes", "--no-binary=llama-cpp-python", "--requirement", requirements, "--dest", tmp])
        with tarfile.open(next(pathlib.Path(tmp).glob("*.tar.gz"))) as archive:
            for entry in archive:
                name = entry.name.partition("/vendor/llama.cpp/ggml/")[2]
                if entry.isfile() and name and wanted(name):
                    target = dest / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.extractfile(entry).read())
    (dest / "ggml.pc.in").touch()  # not in the package, and CMake asks for it
    stamp.write_text(pins)


main()
