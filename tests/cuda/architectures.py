#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints for which architectures a library holds device code, and fails unless it is those that are named.

    architectures.py LIBRARY sm_80 sm_90 compute_90

Device code lies in containers: a head (magic, version, bytes of the head, bytes behind it), then entries, each with its
kind (1 PTX, 2 machine code), its own head's and its body's bytes, and the architecture.
"""
import struct
import sys

MAGIC = struct.pack("<I", 0xBA55ED50)


def architectures(data: bytes) -> set[str]:
    found = set()
    at = data.find(MAGIC)
    while at >= 0:
        head, size = struct.unpack_from("<HQ", data, at + 6)
        entry, end = at + head, at + head + size
        if head == 16 and end <= len(data):
            while entry + 32 <= end:
                kind, _, entry_head, body = struct.unpack_from("<HHIQ", data, entry)
                (arch,) = struct.unpack_from("<I", data, entry + 28)
                found.add({1: "compute_", 2: "sm_"}.get(kind, f"kind {kind} ") + str(arch))
                entry += entry_head + body
        at = data.find(MAGIC, at + 4)
    return found


def main() -> None:
    library, wanted = sys.argv[1], set(sys.argv[2:])
    with open(library, "rb") as file:
        found = architectures(file.read())
    print(f"{library}: {' '.join(sorted(found)) or 'no device code'}")
    if found != wanted:
        sys.exit(f"expected {' '.join(sorted(wanted))}")


main()
