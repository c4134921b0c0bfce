#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Unpacks a CUDA compiler from pinned PyPI wheels, beside the CUDA libraries that LibTorch names.

    fetch_cuda.py REQUIREMENTS DEST

Gives DEST/nvidia/cu13/{bin/nvcc,nvvm,include,lib}; nvcc finds its parts by its own place, so the folder may be moved.
Neither a driver nor a device is needed to compile. Zip files carry no permissions, so the programs get theirs here. A
stamp makes the second call a no-op; an interrupted call starts again.
"""
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PLATFORMS = ["manylinux_2_28", "manylinux_2_27", "manylinux_2_25", "manylinux_2_17", "manylinux2014", "manylinux2010"]


def main() -> None:
    requirements, dest = sys.argv[1], pathlib.Path(sys.argv[2])
    stamp, pins = dest / "cuda.stamp", pathlib.Path(requirements).read_text()
    if stamp.exists() and stamp.read_text() == pins:
        return
    dest.mkdir(parents=True, exist_ok=True)
    platforms = [arg for tag in PLATFORMS for arg in ("--platform", f"{tag}_x86_64")]
    with tempfile.TemporaryDirectory(dir=dest) as tmp:
        subprocess.check_call([
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--no-cache-dir", "--require-hashes", "--only-binary=:all:", "--python-version", "3.11", *platforms,
            "--requirement", requirements, "--dest", tmp])
        for wheel in sorted(pathlib.Path(tmp).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for entry in archive.infolist():
                    if not entry.is_dir() and entry.filename.startswith("nvidia/"):
                        archive.extract(entry, dest)
    root = dest / "nvidia" / "cu13"
    for folder in ("bin", "nvvm/bin"):
        for program in (root / folder).iterdir():
            if program.is_file():
                program.chmod(0o755)
    if not (root / "lib64").exists():  # where nvcc and CMake look
        (root / "lib64").symlink_to("lib")
    stamp.write_text(pins)


main()
