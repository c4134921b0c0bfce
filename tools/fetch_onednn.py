#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Unpacks oneDNN (headers and libdnnl.so.3) from the pinned Maven artifact org.bytedeco:dnnl.

    fetch_onednn.py SHA256_FILE DEST

The artifact's own libgomp is left out on purpose: the process has one OpenMP runtime, found by its SONAME.
"""
import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PREFIX = "org/bytedeco/dnnl/linux-x86_64/"


def main() -> None:
    pins, dest = pathlib.Path(sys.argv[1]).read_text(), pathlib.Path(sys.argv[2])
    stamp = dest / "onednn.stamp"
    if stamp.exists() and stamp.read_text() == pins:
        return
    digest, jar = pins.split()
    version = jar.removeprefix("dnnl-").removesuffix("-linux-x86_64.jar")
    dest.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dest) as tmp:
        subprocess.check_call([
            "mvn", "-q", "-B", "dependency:copy", f"-Dartifact=org.bytedeco:dnnl:{version}:jar:linux-x86_64",
            f"-DoutputDirectory={pathlib.Path(tmp).absolute()}", "-Dmdep.useBaseVersion=true"])
        data = (pathlib.Path(tmp) / jar).read_bytes()
        if (found := hashlib.sha256(data).hexdigest()) != digest:
            sys.exit(f"{jar}: sha256 is {found}, expected {digest}")
        with zipfile.ZipFile(pathlib.Path(tmp) / jar) as archive:
            for entry in archive.infolist():
                name = entry.filename.removeprefix(PREFIX)
                if name == "libdnnl.so.3":
                    target = dest / "lib" / name
                elif name.startswith("include/oneapi/") and not entry.is_dir():
                    target = dest / name
                else:
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(entry))
    stamp.write_text(pins)


main()
