# SPDX-License-Identifier: Apache-2.0
"""Turns a GGUF file of a Llama-like model with a byte-level BPE vocabulary into a Hugging Face folder, bfloat16.

The weights are dequantized (F32, Q4_1, Q8_0) and rounded to bfloat16, nearest even; the rotary rows of the query and key
projections go back from GGUF's order to Hugging Face's. Output and embedding weights are tied, so only one is written.
model.safetensors has the layout that Transformers' save_pretrained gives, byte for byte. One tensor at a time is in
memory. Needs numpy.
"""
import json
import mmap
import pathlib
import struct

import numpy as np

LAYER_NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm"}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
F32, Q4_1, Q8_0 = 0, 3, 8
BLOCK = 32  # values that share a scale
BLOCK_BYTES = {Q4_1: 2 + 2 + BLOCK // 2, Q8_0: 2 + BLOCK}
CONTROL_TOKEN = 3


class Gguf:
    """The metadata (`fields`) and the tensors of a GGUF file, version 3, little endian."""

    def __init__(self, path: pathlib.Path):
        with open(path, "rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.at = 0
        magic, version, n_tensors, n_fields = self._unpack("4sIQQ")
        if magic != b"GGUF" or version != 3:
            raise ValueError(f"{path} is not a GGUF file of version 3")
        self.fields = {}
        for _ in range(n_fields):
            key = self._string()
            self.fields[key] = self._value(self._unpack("I")[0])
        self.tensors = {}  # name -> (shape, kind, offset)
        for _ in range(n_tensors):
            name = self._string()
            shape = self._unpack(f"{self._unpack('I')[0]}Q")[::-1]  # GGUF names the fastest dimension first
            self.tensors[name] = (shape, *self._unpack("IQ"))
        alignment = self.fields.get("general.alignment", 32)
        self.base = -(-self.at // alignment) * alignment

    def _unpack(self, form: str):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def _string(self) -> str:
        length, = self._unpack("Q")
        self.at += length
        return self.data[self.at - length:self.at].decode()

    def _value(self, kind: int):
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            item, count = self._unpack("IQ")
            if item in SCALARS:
                return list(self._unpack(f"{count}{SCALARS[item]}"))
            return [self._value(item) for _ in range(count)]
        return self._unpack(SCALARS[kind])[0]

    def tensor(self, name: str) -> np.ndarray:
        """The tensor as float32."""
        shape, kind, offset = self.tensors[name]
        count = int(np.prod(shape))
        if kind == F32:
            return np.frombuffer(self.data, "<f4", count, self.base + offset).reshape(shape)
        if kind not in BLOCK_BYTES:
            raise ValueError(f"tensor {name}: GGUF type {kind} is not known here (F32, Q4_1 and Q8_0 are)")
        size = BLOCK_BYTES[kind]
        blocks = np.frombuffer(self.data, np.uint8, count // BLOCK * size, self.base + offset).reshape(-1, size)
        scale = blocks[:, :2].view("<f2").astype(np.float32)
        if kind == Q8_0:
            return (blocks[:, 2:].view(np.int8).astype(np.float32) * scale).reshape(shape)
        lowest = blocks[:, 2:4].view("<f2").astype(np.float32)
        nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype(np.float32)
        return (scale * nibbles + lowest).reshape(shape)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounded to nearest, ties to even, as the upper halves of the float32 patterns. The values are finite."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def hf_name(name: str) -> str:
    if name in ("token_embd.weight", "output_norm.weight"):
        return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"


def hf_tensor(gguf: Gguf, name: str, heads: dict) -> np.ndarray:
    values = gguf.tensor(name)
    n = heads.get(name.split(".")[-2], 0)
    if n:  # GGUF interleaves the two rotary halves of each head
        values = values.reshape(n, values.shape[0] // n // 2, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
    return values


def write_weights(gguf: Gguf, path: pathlib.Path, heads: dict, progress) -> None:
    names = sorted((hf_name(name), name) for name in gguf.tensors)
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for new, old in names:
        shape = gguf.tensors[old][0]
        begin, end = end, end + 2 * int(np.prod(shape))
        header[new] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for new, old in names:
            out.write(to_bfloat16(hf_tensor(gguf, old, heads)).tobytes())
            progress(header[new]["data_offsets"][1] / end)


def tokenizer(fields: dict) -> dict:
    tokens = fields["tokenizer.ggml.tokens"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    sequence = [{"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB")]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
            for i, (token, kind) in enumerate(zip(tokens, fields["tokenizer.ggml.token_type"])) if kind == CONTROL_TOKEN],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": {"type": "TemplateProcessing", "single": sequence[:1], "pair": sequence, "special_tokens": {}},
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]]}}


def convert(source: pathlib.Path, folder: pathlib.Path, progress) -> None:
    """Writes the Hugging Face folder. `progress` is called with the part done, 0 to 1."""
    gguf = Gguf(source)
    fields = gguf.fields
    llama = {key.removeprefix("llama."): value for key, value in fields.items() if key.startswith("llama.")}
    special = {name: fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "unknown", "padding")}
    tokens = fields["tokenizer.ggml.tokens"]
    heads = {"attn_q": llama["attention.head_count"], "attn_k": llama["attention.head_count_kv"]}

    def write_json(name: str, value) -> None:
        (folder / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    ids = {"bos_token_id": special["bos"], "eos_token_id": special["eos"], "pad_token_id": special["padding"]}
    write_json("config.json", {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, **ids, "dtype": "bfloat16",
        "head_dim": llama["rope.dimension_count"], "hidden_act": "silu", "hidden_size": llama["embedding_length"],
        "initializer_range": 0.02, "intermediate_size": llama["feed_forward_length"],
        "max_position_embeddings": llama["context_length"], "mlp_bias": False, "model_type": "llama",
        "num_attention_heads": heads["attn_q"], "num_hidden_layers": llama["block_count"],
        "num_key_value_heads": heads["attn_k"], "rms_norm_eps": float(f"{llama['attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_parameters": {"rope_theta": llama["rope.freq_base"], "rope_type": "default"}, "tie_word_embeddings": True,
        "use_cache": True, "vocab_size": len(tokens)})
    write_json("generation_config.json", ids)
    write_json("tokenizer.json", tokenizer(fields))
    write_json("tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": tokens[special["bos"]], "eos_token": tokens[special["eos"]],
        "unk_token": tokens[special["unknown"]], "pad_token": tokens[special["padding"]],
        "model_max_length": llama["context_length"], "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"]})
    write_weights(gguf, folder / "model.safetensors", heads, progress)
