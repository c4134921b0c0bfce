#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Unpacks LibTorch for a C++ program, and the two CUDA libraries it names, from pinned PyPI wheels.

    fetch_libtorch.py REQUIREMENTS DEST

Only headers and the CPU libraries are kept (0.5 of 1.2 GB). The wheel also ships its own fmt, oneDNN, protobuf and
pybind11 headers, which would hide ours: they stay out. The libraries find one another by their own RUNPATH as long as
DEST/torch/lib and DEST/nvidia/cu13/lib stay side by side. Platform and Python version of the wheel are pinned, so the
machine's own Python does not matter. A stamp makes the second call a no-op; an interrupted call starts again.
"""
import pathlib
import subprocess
import sys
import tempfile
import zipfile

TORCH_LIBS = {"libc10.so", "libtorch_cpu.so", "libtorch.so", "libgomp.so.1"}
TORCH_HEADERS = {"ATen", "c10", "caffe2", "torch"}
CUDA_TOOLS = ("libnvperf", "libcheckpoint", "libpcsampling")
# pip takes exactly the tags it is given, so the older ones are listed too.
PLATFORMS = ["manylinux_2_28", "manylinux_2_27", "manylinux_2_25", "manylinux_2_17", "manylinux2014", "manylinux2010"]


def wanted(name: str) -> bool:
    parts = name.split("/")
    if parts[0] == "nvidia":
        return not parts[-1].startswith(CUDA_TOOLS)
    if parts[0] != "torch" or len(parts) < 3:
        return False
    return parts[1] == "include" and parts[2] in TORCH_HEADERS or parts[1] == "lib" and len(parts) == 3 and parts[2] in TORCH_LIBS


def download(requirements: str, folder: str) -> None:
    platforms = [arg for tag in PLATFORMS for arg in ("--platform", f"{tag}_x86_64")]
    subprocess.check_call([
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-cache-dir",
        "--require-hashes", "--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp", *platforms,
        "--requirement", requirements, "--dest", folder])


def main() -> None:
    requirements, dest = sys.argv[1], pathlib.Path(sys.argv[2])
    dest.mkdir(parents=True, exist_ok=True)
    stamp, pins = dest / "torch.stamp", pathlib.Path(requirements).read_text()
    if stamp.exists() and stamp.read_text() == pins:
        return
    with tempfile.TemporaryDirectory(dir=dest) as tmp:
        download(requirements, tmp)
        for wheel in sorted(pathlib.Path(tmp).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for entry in archive.infolist():
                    if not entry.is_dir() and wanted(entry.filename):
                        archive.extract(entry, dest)
    stamp.write_text(pins)


main()
