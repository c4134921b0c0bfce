#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every run file of examples/ on the model that KVPLUG_TEST_SMOLLM2 names, for a few tokens. Ends with 77 (skipped)
without one; the files are checked all the same.

    run_examples.py KVPLUG EXAMPLES
"""
import json
import os
import pathlib
import subprocess
import sys

program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
files = sorted(folder.glob("*.toml"))
failed = not files


def run(*arguments: str) -> str:
    global failed
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    print(f"[{done.returncode}] kvplug {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    failed |= done.returncode != 0 or not done.stdout.strip()
    return done.stdout


run("check", *map(str, files))
model = os.environ.get("KVPLUG_TEST_SMOLLM2")
for file in files if model else []:
    out = run("run", str(file), "--set", f"model.path={model}", "--max-new-tokens", "4")
    text = file.read_text(encoding="utf-8")
    if 'format = "json' in text:
        for line in out.splitlines():
            json.loads(line)
sys.exit(1 if failed else 0 if model else 77)
