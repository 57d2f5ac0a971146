#!/usr/bin/env python3
"""Writes the seeds of tests/fuzz/corpus: small files that reach each branch of the parsers.

    tools/make_fuzz_seeds.py [tests/fuzz/corpus]
"""
import json
import os
import struct
import sys
import zlib

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind, value):
    return text(value) if kind == STRING else struct.pack("<" + CODES[kind], value)


def key(name, kind, value):
    return text(name) + struct.pack("<I", kind) + scalar(kind, value)


def array(name, kind, values):
    head = text(name) + struct.pack("<IIQ", ARRAY, kind, len(values))
    return head + b"".join(scalar(kind, value) for value in values)


def tensor(name, dimensions, kind, offset):
    return (text(name) + struct.pack("<I", len(dimensions)) + struct.pack("<%dQ" % len(dimensions), *dimensions)
            + struct.pack("<IQ", kind, offset))


def gguf(keys, tensors, data=b"", version=3, alignment=32):
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys) + b"".join(tensors)
    return head + b"\0" * (-len(head) % alignment) + data


def model_keys(family):
    """What model_config_read takes from a file."""
    counts = {"block_count": 4, "context_length": 64, "embedding_length": 32, "feed_forward_length": 48, "vocab_size": 16,
              "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16,
              "attention.value_length": 16}
    floats = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4}
    if family in ("opt", "cohere2"):
        floats = {"attention.layer_norm_epsilon": 1e-5}
    dense = family in ("llama", "qwen2", "qwen3", "opt", "smollm3", "seed_oss", "mistral3", "lfm2", "qwen35", "gemma2",
                       "gemma3", "gemma4", "olmo2", "exaone4", "phi3", "glm4", "granite", "cohere2")
    if not dense:
        counts.update({"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 16})
    if family in ("qwen2moe", "qwen3next"):
        counts["expert_shared_feed_forward_length"] = 24
    if family == "lfm2moe":
        counts.update({"leading_dense_block_count": 1, "expert_gating_func": 2})
    if family in ("lfm2", "lfm2moe"):
        counts["shortconv.l_cache"] = 3
        del counts["attention.head_count_kv"]
    if family in ("qwen35", "qwen3next"):
        counts.update({"full_attention_interval": 2, "ssm.conv_kernel": 4, "ssm.group_count": 2, "ssm.state_size": 16,
                       "ssm.time_step_rank": 6, "ssm.inner_size": 144, "rope.dimension_count": 4})
    if family == "cohere2":
        floats["logit_scale"] = 0.25
    if family in ("gemma3", "olmo2", "exaone4", "cohere2"):
        counts.update({"attention.sliding_window": 20, "attention.sliding_window_pattern": 2})
        floats.update({"rope.freq_base_swa": 5e4, "rope.scaling.factor": 4})
    if family == "gemma2":
        floats.update({"attn_logit_softcapping": 50, "final_logit_softcapping": 30})
    if family == "gemma4":
        counts.update({"attention.sliding_window": 20, "attention.key_length_swa": 8, "attention.value_length_swa": 8,
                       "attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 8})
        floats.update({"rope.freq_base_swa": 5e4, "final_logit_softcapping": 30})
        del counts["feed_forward_length"]
    if family == "glm4moe":
        counts.update({"nextn_predict_layers": 1, "leading_dense_block_count": 1, "expert_shared_count": 1,
                       "expert_gating_func": 2, "expert_group_count": 4, "expert_group_used_count": 2,
                       "rope.dimension_count": 8})
        floats["expert_weights_scale"] = 1.5
    if family == "granitemoe":  # feed_forward_length is that of experts
        del counts["expert_feed_forward_length"]
        counts["expert_shared_feed_forward_length"] = 24
    if family in ("granite", "granitemoe"):
        floats.update({"embedding_scale": 6, "residual_scale": 0.25, "logit_scale": 4, "attention.scale": 0.125})
    if family == "phi3":
        floats["rope.scaling.attn_factor"] = 1.2
    if family in ("minimax-m2", "glm4"):
        counts["rope.dimension_count"] = 8
    if family == "gpt-oss":
        counts["attention.sliding_window"] = 20
    if family == "qwen35moe":
        counts.update({"nextn_predict_layers": 1, "rope.dimension_count": 8, "ssm.conv_kernel": 4, "ssm.group_count": 2,
                       "ssm.time_step_rank": 6, "ssm.state_size": 16, "ssm.inner_size": 48})
    scaled = family in ("gpt-oss", "mistral3", "olmo2")
    if scaled:
        counts["rope.scaling.original_context_length"] = 16
        floats["rope.scaling.factor"] = 4
    if family == "mistral3":
        floats["attention.temperature_scale"] = 0.2
    return ([key("general.architecture", STRING, family)] + [key(f"{family}.{name}", U32, n) for name, n in counts.items()]
            + [key(f"{family}.{name}", F32, n) for name, n in floats.items()]
            + [key(family + ".rope.scaling.type", STRING, "yarn")] * scaled
            + [array(family + ".attention.head_count_kv", I32, [0, 2, 0, 1])] * family.startswith("lfm2")
            + [array(family + ".attention.sliding_window_pattern", BOOL, [1, 0, 1, 0]),
               array(family + ".feed_forward_length", I32, [48, 48, 96, 96])] * (family == "gemma4")
            + [array(family + ".attention.recurrent_layers", BOOL, [1, 0, 1])] * (family == "qwen35moe"))


def gguf_seeds():
    every = [key("k%d" % kind, kind, 1) for kind in CODES] + [key("text", STRING, "llama")]
    arrays = [array("a%d" % kind, kind, [0, 1, 1]) for kind in CODES] + [array("words", STRING, ["", "a", "bcd"])]
    yield "empty", gguf([], [])
    yield "version2", gguf([key("general.architecture", STRING, "llama")], [], version=2)
    yield "every_type", gguf(every, [])
    yield "every_array", gguf(arrays, [])
    yield "alignment", gguf([key("general.alignment", U32, 64)], [tensor("t", [3], 0, 64)], b"\1" * 76, alignment=64)
    types = {0: (4, 1), 1: (2, 1), 2: (18, 32), 3: (20, 32), 6: (22, 32), 7: (24, 32), 8: (34, 32), 10: (84, 256),
             11: (110, 256), 12: (144, 256), 13: (176, 256), 14: (210, 256), 20: (18, 32), 23: (136, 256), 30: (2, 1), 16: (66, 256), 17: (74, 256),
             18: (98, 256), 19: (50, 256), 21: (110, 256), 22: (82, 256), 29: (56, 256), 39: (17, 32), 40: (36, 64)}
    offset, tensors = 0, []
    for kind, (size, block) in types.items():
        tensors.append(tensor("blk.%d.weight" % kind, [block], kind, offset))
        offset += -(-size // 32) * 32
    yield "every_tensor_type", gguf([], tensors, b"\x5a" * offset)
    yield "shapes", gguf([], [tensor("a", [2, 3, 4, 5], 0, 0), tensor("b", [1], 30, 480)], b"\2" * 512)
    yield "overlap", gguf([], [tensor("a", [8], 0, 0), tensor("b", [8], 0, 0)], b"\2" * 64)
    yield "twice", gguf([key("a", U8, 1), key("a", U8, 2)], [])
    yield "split", gguf([key("split.no", U16, 0), key("split.count", U16, 2), key("split.tensors.count", I32, 1)], [])
    for family in ("llama", "qwen2", "qwen3", "opt", "qwen3moe", "qwen2moe", "glm4moe", "gpt-oss", "smollm3", "seed_oss",
                   "mistral3", "lfm2", "lfm2moe", "qwen35", "qwen35moe", "qwen3next", "gemma2", "gemma3", "gemma4", "olmo2", "exaone4", "minimax-m2",
                   "phi3", "glm4", "granite", "granitemoe", "cohere2"):
        yield "model_" + family, gguf(model_keys(family), [])
    experts = [key("gemma4." + name, U32, n) for name, n in
               (("expert_count", 8), ("expert_used_count", 3), ("expert_feed_forward_length", 16))]
    yield "model_gemma4-experts", gguf(model_keys("gemma4") + experts, [])
    words = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % i for i in range(8)] + ["\u2581a", "b"]
    yield "vocabulary", gguf([key("tokenizer.ggml.model", STRING, "llama"), array("tokenizer.ggml.tokens", STRING, words),
                              array("tokenizer.ggml.scores", F32, [0.0] * len(words)),
                              array("tokenizer.ggml.token_type", I32, [1] * len(words))], [])


def safetensors(header, data=b""):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def safetensors_seeds():
    def one(kind, shape, begin, end):
        return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}

    yield "empty", safetensors({})
    yield "one", safetensors({"a": one("F32", [2, 3], 0, 24)}, b"\1" * 24)
    yield "padded", safetensors(b'{"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}      ', b"\1\2")
    yield "metadata", safetensors({"__metadata__": {"format": "pt"}, "a": one("BF16", [], 0, 2)}, b"\1\2")
    names = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
    header, offset = {}, 0
    for name, size in names.items():
        header["t." + name] = one(name, [size], offset, offset + size * size)
        offset += size * size
    yield "every_dtype", safetensors(header, b"\3" * offset)
    yield "overlap", safetensors({"a": one("F32", [2], 0, 8), "b": one("F32", [2], 4, 12)}, b"\1" * 12)
    yield "beyond", safetensors({"a": one("F32", [200], 0, 800)}, b"\1" * 12)
    yield "negative", safetensors({"a": one("F32", [-1], 0, 4)}, b"\1" * 4)
    yield "nested", safetensors(b"[" * 200 + b"]" * 200)
    yield "twice", safetensors(b'{"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},"a":{}}', b"\1\2")


def llama_config(**changes):
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 288, "hidden_size": 8,
              "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 12,
              "rms_norm_eps": 1e-05, "max_position_embeddings": 64, "rope_theta": 10000.0, "bos_token_id": 0,
              "eos_token_id": 1, "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "float32"}
    config.update(changes)
    return config


def byte_tokenizer(count=288, pre=None):
    """A byte-level BPE of `count` tokens: two special ones, the bytes, and what their first merges give."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) if b in plain else None for b in range(256)]
    spare = iter(range(256, 512))
    letters = [letter or chr(next(spare)) for letter in letters]
    tokens, merges = ["<s>", "</s>", *letters], []
    for second in letters[97:]:
        if len(tokens) == count:
            break
        merges.append("e " + second)
        tokens.append("e" + second)
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"version": "1.0", "added_tokens": [{"id": i, "content": tokens[i], **special} for i in range(2)],
            "normalizer": None, "pre_tokenizer": pre or {"type": "ByteLevel", "add_prefix_space": False,
                                                         "trim_offsets": True, "use_regex": True},
            "post_processor": None, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False,
                      "ignore_merges": False, "vocab": {token: i for i, token in enumerate(tokens)},
                      "merges": merges}}


def import_seeds():
    def pair(config, tokenizer):
        return json.dumps(config).encode() + b"\0" + json.dumps(tokenizer, ensure_ascii=False).encode()

    sound = byte_tokenizer()
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 32}
    split = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
    listed = byte_tokenizer()
    listed["model"]["merges"] = [merge.split(" ") for merge in listed["model"]["merges"]]
    holes = byte_tokenizer()
    holes["model"]["vocab"]["e"] = 4000000000
    unigram = {"version": "1.0", "added_tokens": [], "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]]}}
    pieces = ["<unk>", "<s>", "</s>", *("<0x%02X>" % b for b in range(256)), *"abcdefghijklmnopqrstuvwxyz", "\u2581",
              "\u2581a", "\u2581b"]
    sentence = {"version": "1.0", "added_tokens": [], "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "pre_tokenizer": None, "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                                         "vocab": {piece: i for i, piece in enumerate(pieces)},
                                         "merges": ["\u2581 a", "\u2581 b"]}}
    yield "llama", pair(llama_config(), sound)
    yield "sentence", pair(llama_config(), sentence)
    yield "llama3", pair(llama_config(rope_scaling=llama3), listed)
    yield "yarn", pair(llama_config(rope_scaling={"type": "yarn", "factor": 4.0,
                                                  "original_max_position_embeddings": 16}), unigram)
    yield "split", pair(llama_config(), byte_tokenizer(pre=split))
    yield "mistral", pair(llama_config(architectures=["MistralForCausalLM"], sliding_window=16), sound)
    yield "qwen2", pair(llama_config(architectures=["Qwen2ForCausalLM"], use_sliding_window=False), sound)
    yield "qwen3", pair(llama_config(architectures=["Qwen3ForCausalLM"], head_dim=4), sound)
    yield "opt", pair(llama_config(architectures=["OPTForCausalLM"], word_embed_proj_dim=8, ffn_dim=12), sound)
    yield "holes", pair(llama_config(), holes)
    yield "huge", pair(llama_config(num_hidden_layers=1 << 40, vocab_size=1 << 62), sound)
    yield "small", pair(llama_config(), {})
    yield "nothing", b""


def calibration_seeds():
    """Of the model in fuzz_calibration.c: 2 layers, 4 heads, 2 KV heads of 8."""
    own = "loam.calibration."

    def keys(fingerprint="0123456789abcdef", version=1):
        return [key("general.architecture", STRING, "loam-calibration"), key(own + "version", U32, version),
                key(own + "layer_count", U32, 2), key(own + "head_count", U32, 4),
                key(own + "kv_head_count", U32, 2), key(own + "k_dimension", U32, 8),
                key(own + "fingerprint", STRING, fingerprint)]

    def file(entries, head=None):
        table, data = [], b""
        for name, dimensions, kind, raw in entries:
            table.append(tensor(name, dimensions, kind, len(data)))
            data += raw + b"\0" * (-len(raw) % 32)
        return gguf(head or keys(), table, data)

    def floats(values):
        return struct.pack("<%df" % len(values), *values)

    def halves(count, value=0.5):
        return struct.pack("<%de" % count, *[value] * count)

    f32, f16 = 0, 1
    matrices = [("blk.%d.%s" % (layer, name), (columns, 8, 2), f16, halves(16 * columns))
                for layer in range(2) for name, columns in (("skew", 8), ("hash_64", 64))]
    scores = [("head_importance", (4, 2), f32, floats([0, 1, 0.5, 0.25] * 2)),
              ("query_similarity", (4, 2), f32, floats([-1, 1, 0.5, 0] * 2)),
              ("kv_sensitivity", (4, 2), f32, floats([0, 0.5, 2, 3e38] * 2))]
    curve = [("reuse_curve", (3, 2, 4), f32, floats([0.5, 1, -2] * 8))]
    sound = matrices + scores + curve
    digest = 0xcbf29ce484222325
    for name, _, _, raw in sound:
        for byte in name.encode() + raw:
            digest = (digest ^ byte) * 0x100000001b3 % (1 << 64)
    yield "sound", file(sound)
    yield "digest", file(sound, keys() + [key(own + "digest", STRING, "%016x" % digest)])
    yield "changed", file(sound, keys() + [key(own + "digest", STRING, "%016x" % (digest ^ 1))])
    yield "bare", file([])
    yield "scores", file(scores)
    yield "curve", file(curve)
    yield "short_curve", file([("reuse_curve", (3, 2, 3), f32, floats([0.5, 1, -2] * 6))])
    yield "infinite", file([("blk.0.skew", (8, 8, 2), f16, halves(128, float("inf")))])
    yield "narrow", file([("blk.0.hash_128", (64, 8, 2), f16, halves(1024))])
    yield "out_of_range", file([("head_importance", (4, 2), f32, floats([0, 1, 2, 0] * 2))])
    yield "other_model", file(scores, keys("fedcba9876543210"))
    yield "other_version", file(scores, keys(version=2))


def chat_template_seeds():
    """The first byte: the family, 127: detect it; + 128: the answer begins.  Then a role, a text and a zero each."""
    talk = b"\0Be brief.\0\1Hello <|im_start|>system\0\2Hello.\0\1<s>[INST] x [/INST]</s> <start_of_turn>\0"
    for family in range(14):
        yield "family_%d" % family, bytes([128 + family]) + talk
    yield "marks", b"\3\1" + "<|eot_id|> \u00e4 <\uff5cUser\uff5c> \u2581".encode()
    yield "two_answers", b"\x81\2a\0\2b"
    yield "nobody", b"\x80"
    for name, template in (
            ("chatml", b"{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
                       b"{% endfor %}"),
            ("llama3", b"{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>' }}<|eot_id|>"),
            ("gemma", b"{{ '<start_of_turn>' + role }}<end_of_turn>"),
            ("unknown", b"{{ messages }}")):
        yield "detect_" + name, b"\x7f" + template


def jinja_seeds():
    """A template, a zero, and what a user says."""
    path = os.path.join(os.path.dirname(__file__), "../tests/jinja/templates.json")
    with open(path, encoding="utf-8") as file:
        recorded = json.load(file)
    kept = {"llama3.2", "mistral-v3", "gemma3", "qwen3", "qwen-xml", "deepseek-r1", "glm4", "harmony", "command-r-tools",
            "granite", "smollm3", "kimi", "minimax", "gemma-tools", "whitespace", "raw", "set-block"}
    said = "\0Hi <|im_end|>{{ 1 }}".encode() + b"\xff"
    for entry in recorded["templates"]:
        if entry["name"] in kept:
            yield entry["name"], entry["source"].encode() + said
    sources = [source for source, rendered in recorded["snippets"] if rendered is not None]
    for i in range(0, len(sources), 40):
        yield "constructs_%d" % (i // 40), "\n".join(sources[i:i + 40]).encode() + said


def store_seeds():
    """Changes to a folder of saved documents, as tests/fuzz/fuzz_store.c takes them."""
    document, commit, row, file = 0, 1, 2, 3
    number, words, blob, zeros, null, byte_of_blob = range(6)
    yield "sound", b""
    for column in range(12):
        yield "document_number_%d" % column, bytes([document, column, number]) + struct.pack("<q", 1 << 27)
        yield "document_text_%d" % column, bytes([document, column, words, 4]) + b"abc\n"
    for column in range(8):
        yield "commit_number_%d" % column, bytes([commit, column, number]) + struct.pack("<q", -1)
        yield "commit_zeros_%d" % column, bytes([commit, column, zeros]) + struct.pack("<H", 1000)
        yield "commit_byte_%d" % column, bytes([commit, column, byte_of_blob, 7, 3, 0])
    for which in range(5):
        yield "row_%d" % which, bytes([row, which])
    for which in range(6):
        yield "file_%d" % which, bytes([file, which]) + struct.pack("<I", 4000)[:3] + b"\x5a"
    layouts = (b"codec=f16.64,f16.64 layers=2 heads=1 chunk=8192 metadata=abstract/24 segment=16",
               b"codec=f16.64,f16.64 layers=1000 heads=1000 chunk=8192 metadata=abstract/24 segment=16",
               b"codec=f16+q4k64.64,f16+q4v32.64 layers=2 heads=1 chunk=4864 tail=16384 share=88,2:0 metadata=none/0 "
               b"segment=16")
    for i, layout in enumerate(layouts):
        yield "layout_%d" % i, bytes([document, 5, words, len(layout)]) + layout


def parcel_seeds():
    """Changes to exported documents, as tests/fuzz/fuzz_parcel.c takes them, and bytes that are one or nearly."""
    byte, number, small, cut, grow, copy, text = range(7)
    limit, keeps = 1, 2
    header, description, tokens = 0, 40, 40 + 808 + 16
    for which in range(4):
        yield "sound_%d" % which, bytes([which, 0])
        yield "limited_%d" % which, bytes([which, limit | keeps])
    for place in (8, 12, 16, 24):
        yield "header_%d" % place, bytes([0, 0, number]) + struct.pack("<HQ", header + place, 1 << 40)
    for place, count in ((32, 0), (32, 64), (32, 1 << 28), (32, 1 << 29)):
        yield "tokens_%d" % count, bytes([0, 0, number]) + struct.pack("<HQ", description + place, count)
    for place in (0, 40, 40 + 256, 40 + 512):
        yield "text_%d" % place, bytes([3, 0, text]) + struct.pack("<HB", description + place, 4) + b"ab\xffc"
    layouts = (b"codec=f16.64,f16.64 layers=1000 heads=1000 chunk=8192 metadata=none/0 segment=16",
               b"codec=f16.64,f16.64 layers=2 heads=1 chunk=8 metadata=abstract/24 segment=16",
               b"codec=f16.64,f16.64 layers=2 heads=1 chunk=512 metadata=abstract/1048576 segment=16",
               b"codec=f16+q4k64.64,f16+q4v32.64 layers=2 heads=1 chunk=256 tail=1024 share=88,2:0 metadata=none/0 "
               b"segment=16")
    for i, layout in enumerate(layouts):
        yield "layout_%d" % i, (bytes([i % 4, limit, text]) + struct.pack("<HB", description + 40 + 512, len(layout)) +
                                layout)
    yield "one_token", bytes([0, 0, small]) + struct.pack("<HH", tokens + 4, 77)
    yield "negative_token", bytes([0, 0, number]) + struct.pack("<Hq", tokens, -1)
    yield "page", bytes([0, 0, byte]) + struct.pack("<HB", 2000, 1)
    yield "cut", bytes([0, 0, cut]) + struct.pack("<H", 1500)
    yield "cut_header", bytes([0, 0, cut]) + struct.pack("<H", 20)
    yield "longer", bytes([0, 0, grow]) + struct.pack("<HH", 0, 700)
    yield "twice", bytes([3, 0, copy]) + struct.pack("<HHH", description, description + 824, 824)
    yield "nothing", bytes([255, 0])
    yield "magic", bytes([255, 0]) + b"\x89LOAMD\r\n" + struct.pack("<IIQ", 1, 1, 2000) + bytes(16)


def zip_of(members):
    out, directory = b"", b""
    for name, data in members:
        packed = zlib.compressobj(9, zlib.DEFLATED, -15)
        body = packed.compress(data) + packed.flush()
        fields = struct.pack("<HHHIIIIHH", 20, 0, 8, 0, zlib.crc32(data), len(body), len(data), len(name), 0)
        directory += b"PK\1\2" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, len(out)) + name
        out += b"PK\3\4" + fields + name + body
    end = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), len(out), 0)
    return out + directory + b"PK\5\6" + end


def document_seeds():
    page = (b"<!doctype html><html><head><title>T &amp; U</title><script>if (a</b) x</script></head><body><h1>One</h1>"
            b"<p>a <b title='>'>b</b>&#65;&mdash;&copy 5<br><ul><li>x<li>y</ul><table><tr><td>1<td>2</table><pre> z\n</pre>"
            b"<![CDATA[<c>]]><!-- d --><svg><path/></svg>")
    package = (b"<package><manifest><item id='a' href='t/%61.xhtml#x'/><item id='b' href='../b.xhtml'/></manifest>"
               b"<spine><itemref idref='b'/><itemref idref='a'/></spine></package>")
    book = zip_of([(b"mimetype", b"application/epub+zip"),
                   (b"META-INF/container.xml", b"<container><rootfile full-path='O/p.opf'/></container>"),
                   (b"O/p.opf", package), (b"O/t/a.xhtml", page), (b"b.xhtml", b"<html><body>first")])
    wide = "The gate of the garden is green, and K\u00f6ln is far.".encode("utf-16-le")
    return [("plain", b"\0one\ntwo\x0cthree\x0bfour\n"), ("bom", b"\0\xef\xbb\xbfone"), ("wide", b"\0" + wide),
            ("wide_mark", b"\0\xfe\xff\0a\0b"), ("latin", b"\2K\xf6ln"), ("japanese", b"\6\x82\xa0\x81"),
            ("chinese", b"\x08\x81\x30\x81\x30\xff"), ("page", b"\1" + page), ("koi8", b"\1<meta charset=koi8-r>\xc1"),
            ("epub", b"\0" + book), ("picture", b"\0\x89PNG\r\n\0")]


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../tests/fuzz/corpus")
    for folder, seeds in (("gguf", gguf_seeds()), ("safetensors", safetensors_seeds()),
                          ("import", import_seeds()), ("calibration", calibration_seeds()),
                          ("chat_template", chat_template_seeds()), ("jinja", jinja_seeds()), ("store", store_seeds()),
                          ("parcel", parcel_seeds()), ("document", document_seeds())):
        os.makedirs(os.path.join(root, folder), exist_ok=True)
        for name, data in seeds:
            with open(os.path.join(root, folder, name), "wb") as file:
                file.write(data)


if __name__ == "__main__":
    main()
