#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Transformers' side of tests/bench/decode: the protocol of decode_worker.cc, with its own `dynamic` or `quantized` cache.

Usage: decode_reference.py MODEL_FOLDER DTYPE THREADS
"""
import json
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, DynamicCache, QuantizedCache  # noqa: E402
from transformers.utils import logging  # noqa: E402

logging.set_verbosity_error()
logging.disable_progress_bar()


def make_cache(model, choice):
    if choice["cache_implementation"] == "quantized":
        return QuantizedCache(config=model.config, **choice["cache_config"])
    return DynamicCache(config=model.config)


@torch.no_grad()
def answer(model, choice, context, fresh):
    ids = (torch.arange(context) * 7919 % 40000 + 100)[None]
    cache = make_cache(model, choice)
    start = time.perf_counter()
    logits = model(input_ids=ids, past_key_values=cache, logits_to_keep=1).logits
    chosen = [int(logits[0, -1].argmax())]
    prefill = time.perf_counter() - start
    seconds = []
    for i in range(fresh):
        start = time.perf_counter()
        logits = model(
            input_ids=torch.tensor([[1000 + 7 * i]]), past_key_values=cache, position_ids=torch.tensor([[context + i]])
        ).logits
        chosen.append(int(logits[0, -1].argmax()))
        seconds.append(time.perf_counter() - start)
    rss = int(open("/proc/self/statm").read().split()[1]) * 4096
    return {"prefill_s": prefill, "step_s": seconds, "ids": chosen, "rss_bytes": rss}


def main():
    folder, dtype, threads = sys.argv[1:4]
    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answer(model, request["cache"], request["context"], request["new"])), flush=True)


main()
