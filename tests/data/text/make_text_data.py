# SPDX-License-Identifier: Apache-2.0
"""Writes pretokenizers.json and templates.json, the reference data of the text tests.

    pip install tokenizers==0.23.3 jinja2==3.1.6 && python make_text_data.py

pretokenizers.json: ids by the Python `tokenizers` library (whose regex engine is another one than ours) under the
pre-tokenizers of well-known models. The small BPE model was trained across word borders, so a border in the wrong place
changes the ids. templates.json: Jinja features that chat templates use, rendered by Python's jinja2 with the
settings of Transformers' apply_chat_template.
"""
import itertools
import json
import os

import jinja2
import jinja2.ext
import jinja2.sandbox
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))

SPLITS = {
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen3.5": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
             r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
TEXTS = [
    "", " ", " \n\n  a", "12345", "I'M can't we'LL", "na\u00efve-caf\u00e9", "nai\u0308ve-cafe\u0301", "\u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e", "\u4e2d\u6587mixed\u65e5\u672c\u8a9e text\u3002\u4e94",
    "  two  spaces  ", "tabs\t\tand\r\nlines\n \n", "3.14159 and 1,000,000", "CamelCaseWord XMLHttpRequest", "path/to//file\n/x", "a\u00a0b\u2003c\u200bd", "\U0001f469\u200d\U0001f469\u200d\U0001f467 family", "\ud55c\uad6d\uc5b4 \uae00\uc790",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 12", "don\u2019t \u201cquote\u201d", "x = {'a': [1, 22, 333]}; # !!", "\u0645\u0669\u0668\u0667 \u2167 \u00bd", "'''s 'S 'rE", "end with space ",
]
RUNS = ["Z", " ", "\n", "\u5b57", "\u0301", "7", "!"]
RUN_BYTES = 128 * 1024


def fnv1a(ids):
    """64-bit FNV-1a with whole ids in place of bytes, in hexadecimal."""
    h = 0xCBF29CE484222325
    for i in ids:
        h = (h ^ i) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def pretokenizer_data():
    corpus = [t for t in TEXTS if t] * 3 + ["Z" * 40, " " * 40, "\n" * 40, "\u5b57" * 20, "\u0301" * 20, "7" * 40, "!" * 40]
    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    byte_level.decoder = decoders.ByteLevel()
    byte_level.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=700, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    base = json.loads(byte_level.to_str())

    spaced = [t.replace(" ", "\u2581") for t in corpus]
    fallback = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    fallback.train_from_iterator(["\u2581the\u2581" + t for t in spaced if t.isascii() or "\u2581" in t], trainers.BpeTrainer(
        vocab_size=460, show_progress=False, special_tokens=special, limit_alphabet=40))
    metaspace = json.loads(fallback.to_str())
    metaspace["added_tokens"] = metaspace["added_tokens"][:3]
    metaspace["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    metaspace["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                                                              {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    metaspace["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                                   "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}

    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.NFKC()
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    unigram.train_from_iterator(corpus, trainers.UnigramTrainer(vocab_size=300, show_progress=False, special_tokens=["<unk>"], unk_token="<unk>"))

    wordpiece = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": None,
                 "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
                 "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                           "vocab": {t: i for i, t in enumerate(["[UNK]", "a", "##b", "##c", "word", "##s", ".", ",", "'", "t", "don", "!", "and", "with", "end", "space", "##ing"])}}}

    tokenizers = {"gpt2": dict(base, pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True})}
    for name, pattern in SPLITS.items():
        tokenizers[name] = dict(base, pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]})
    tokenizers["metaspace"] = metaspace
    tokenizers["unigram"] = json.loads(unigram.to_str())
    tokenizers["wordpiece"] = wordpiece

    cases = []
    for name, tokenizer in tokenizers.items():
        reference = Tokenizer.from_str(json.dumps(tokenizer))
        for text in TEXTS:
            ids = reference.encode(text, add_special_tokens=False).ids
            cases.append({"tokenizer": name, "text": text, "ids": ids, "decoded": reference.decode(ids, skip_special_tokens=False)})
        if name in ("unigram", "wordpiece"):
            continue
        for run in RUNS:
            times = RUN_BYTES // len(run.encode())
            for tail in ("", "a"):
                ids = reference.encode(run * times + tail, add_special_tokens=False).ids
                cases.append({"tokenizer": name, "run": run, "times": times, "tail": tail, "count": len(ids), "fnv1a": fnv1a(ids)})
    # The models of the byte-level ones are the same: said once.
    shared = base["model"]
    for name in ["gpt2", *SPLITS]:
        tokenizers[name].pop("model")
    return {"byte_level_model": shared, "tokenizers": tokenizers, "cases": cases}


TEMPLATES = {
    "break_continue": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{% if loop.index > 3 %}{% break %}{% endif %}{{ m.role }};{% endfor %}",
    "namespace": "{% set ns = namespace(n=0, last='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.last = m.role %}{% endfor %}{{ ns.n }}{{ ns.last }}",
    "selectattr": "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('|') }}{{ messages | rejectattr('role', 'eq', 'user') | list | length }}",
    "split_last": "{% for m in messages %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}{{ m['content'].split(' ')[0] }}{% endfor %}",
    "strip": "{% for m in messages %}[{{ m.content.strip() }}|{{ m.content.rstrip('.!? ') }}|{{ m.content | trim }}]{% endfor %}",
    "string_methods": "{% for m in messages %}{{ m.role.upper() }}{{ m.role.title() }}{{ m.content.startswith('A') }}{{ m.content.endswith('?') }}{{ m.content.replace('a', 'b') }}{{ m.role | capitalize }}{% endfor %}",
    "slices": "{% for m in messages[::-1] %}{{ m.role[:2] }}{{ m.role[1:] }}{% endfor %}{{ messages[1:] | length }}{{ messages[-1]['role'] }}{{ messages[:-1] | length }}",
    "generation": "{% for m in messages %}\n{% if m.role == 'assistant' %}\n{% generation %}\n{{ m.content }}\n{% endgeneration %}\n{% else %}\n{{ m.role }}\n{% endif %}\n{% endfor %}",
    "generation_trim": "{%- for m in messages %}{%- generation -%}  {{ m.content }}  {%- endgeneration -%}{%- endfor -%}",
    "generation_scope": "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "macro": "{% macro turn(m, sep='\\n') %}<{{ m.role }}>{{ sep }}{{ m.content }}{% endmacro %}{% for m in messages %}{{ turn(m) }}{{ turn(m, sep=' ') }}{% endfor %}",
    "tojson": "{{ messages | tojson }}",
    "tojson_indent": "{{ messages | tojson(indent=2) }}",
    "tojson_indent0": "{{ messages | tojson(indent=0) }}",
    "tojson_ascii": "{{ messages | tojson(ensure_ascii=True) }}",
    "tojson_sorted": "{{ extra | tojson(sort_keys=True) }}{{ extra | tojson }}{{ extra | tojson(indent=4) }}",
    "tojson_separators": "{{ extra | tojson(separators=(',', ':')) }}",
    "tojson_concat": "{{ '<tools>' + (extra | tojson) + '</tools>' }}{{ 'x' | tojson | length }}",
    "whitespace": "a\n  {% if true %}\n  b  \n  {%- if true -%}  c  {%- endif %}\n  {% endif %}\n\td {{ '  e' }}\n{# comment #}\nf {# x -#}  g\n",
    "trailing_newlines": "x\n\n",
    "tests": "{{ extra.n is defined }}{{ nothing is defined }}{{ extra is mapping }}{{ messages is iterable }}{{ 'a' is string }}{{ none is none }}{{ 3 is number }}{{ 4 is even }}{{ messages is sequence }}{{ true is true }}{{ extra.n is not none }}",
    "values": "{{ true }}{{ false }}{{ none }}{{ 1.0 }}{{ 0.5 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 5 }}{{ -3 }}{{ 'a' ~ 1 ~ none ~ true }}",
    "items": "{% for k, v in extra.items() %}{{ k }}={% if v is not mapping %}{{ v }}{% endif %};{% endfor %}{% for k in extra %}{{ k }},{% endfor %}{{ extra.get('n') }}{{ extra.get('zzz', 'dflt') }}{{ extra.keys() | list | length }}",
    "default_filter": "{{ nothing | default('d') }}{{ '' | default('d', true) }}{{ (messages | first).role }}{{ (messages | last).role }}",
    "loop_vars": "{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{% if loop.previtem is defined %}{{ loop.previtem.role }}{% endif %}{% if not loop.last and loop.nextitem %}{{ loop.nextitem.role }}{% endif %}{% else %}none{% endfor %}",
    "conditional": "{{ 'yes' if messages[0].role == 'system' else 'no' }}{{ messages[0].role in ['user', 'system'] }}{{ 'tool' not in messages[0] }}{{ (messages | length) > 1 and not false }}",
    "set_block": "{% set b %}\n  {{ messages[0].role }}\n{% endset %}[{{ b }}]",
    "call_block": "{% macro wrap() %}<{{ caller() }}>{% endmacro %}{% call wrap() %}in{% endcall %}",
    "tools_none": "{{ tools is none }}{{ tools is defined }}{{ documents is none }}{% if tools %}T{% endif %}",
    "range": "{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(5, 1, -2) %}{{ i }}{% endfor %}",
    "raise": "{% for m in messages %}{% if m.role not in ['user', 'assistant', 'system'] %}{{ raise_exception('bad role ' + m.role) }}{% endif %}{{ m.role }}{% endfor %}",
    "alternate": "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}",
    "reasoning": "{% for m in messages %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}",
    "nested_get": "{% for m in messages %}{% if m.tool_calls %}{% for t in m.tool_calls %}{{ t.function.name }}({{ t.function.arguments | tojson }}){% endfor %}{% endif %}{% endfor %}",
    "blocks_content": "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for b in m.content %}{% if b.type == 'text' %}{{ b.text }}{% else %}<{{ b.type }}>{% endif %}{% endfor %}{% endif %}{% endfor %}",
    "format": "{{ '%s-%d' | format('a', 3) }}{{ ['b', 'a'] | sort | join(',') }}{{ [1, 2, 3] | sum }}{{ 'abc' | reverse }}{{ 'a b' | upper }}{{ [3, 1] | min }}{{ 'x,y'.split(',') | last }}",
    "join_map": "{{ messages | map(attribute='role') | unique | join(' ') }}{{ ['a', 'b'] | join }}{{ 'a' in 'abc' }}",
    "dict_list": "{% set d = {'a': 1, 'b': [1, 2]} %}{{ d['b'][1] }}{{ d.a }}{{ d['missing'] is defined }}{% set l = ['x'] + ['y'] %}{{ l | length }}{{ dict(k=3).k }}",
}
EXTRA = {"n": 1, "a": {"z": [], "b": {}, "c": [1, 2.5, 1e-7, 1e16, 123456789012345680.0, -0.0, True, None]}, "k\u00e9": "q\"\\\n\t\u0001\u007f\u2028</x>&'", "e": "\U0001f600"}
CONVERSATIONS = {
    "plain": [{"role": "user", "content": "Are you there?"}],
    "system": [{"role": "system", "content": "  Be brief. "}, {"role": "user", "content": "a <b> & 'c'"}, {"role": "assistant", "content": "<think>\nx\n</think>\n\nAnswer!"}, {"role": "user", "content": "\u7f13\u5b58 \U0001f600\nline"}],
    "tools": [{"role": "user", "content": "call"}, {"role": "assistant", "content": "", "reasoning": "why", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1, "y": ["\u00e9"]}}}]},
              {"role": "tool", "content": "{\"r\": 1}"}],
    "blocks": [{"role": "user", "content": [{"type": "text", "text": "see "}, {"type": "image"}, {"type": "text", "text": "this"}]}],
    "empty": [],
}


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(lineno)

    def _run(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def alias_reasoning(message):
    reasoning = next((message[k] for k in ("reasoning_content", "thinking", "reasoning") if message.get(k) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def template_data():
    env, cases = environment(), []
    for (name, source), (conversation, messages) in itertools.product(TEMPLATES.items(), CONVERSATIONS.items()):
        case = {"id": f"{name}/{conversation}", "template": name, "conversation": conversation}
        try:
            case["text"] = env.from_string(source).render(messages=[alias_reasoning(m) for m in messages], tools=None, documents=None, add_generation_prompt=False, extra=EXTRA)
        except Exception as e:  # noqa: BLE001
            case["error"] = str(e)
        cases.append(case)
    return {"templates": TEMPLATES, "conversations": CONVERSATIONS, "extra": EXTRA, "cases": cases}


def save(name, data):
    """One case a line."""
    cases = data.pop("cases")
    head = json.dumps(data, ensure_ascii=True)[:-1]
    with open(os.path.join(HERE, name), "w") as f:
        f.write(head + ', "cases": [\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]}\n")


save("pretokenizers.json", pretokenizer_data())
save("templates.json", template_data())
