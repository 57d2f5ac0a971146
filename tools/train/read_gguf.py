"""A llama's GGUF file with the names and the order of rows that Hugging Face has, as float32 (needs gguf of PyPI)."""
import json
import subprocess
import types

import numpy
from gguf import GGUFReader
from gguf.quants import dequantize

LAYER = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
OTHER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
         "output.weight": "lm_head.weight"}
FIELDS = {"vocab_size": "vocab_size", "hidden_size": "embedding_length", "num_hidden_layers": "block_count",
          "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
          "intermediate_size": "feed_forward_length", "head_dim": "attention.key_length",
          "rope_theta": "rope.freq_base", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
          "max_position_embeddings": "context_length"}


def read(path):
    """config (what model.Shape takes, and bos_token_id) and {name: array}."""
    reader = GGUFReader(path)
    field = lambda name: reader.fields[name].contents()
    config = {key: field("llama." + name) for key, name in FIELDS.items() if "llama." + name in reader.fields}
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config.setdefault("rope_theta", 10000.0)
    if "vocab_size" not in config:
        config["vocab_size"] = len(reader.fields["tokenizer.ggml.tokens"].contents())
    config["bos_token_id"] = field("tokenizer.ggml.bos_token_id")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        if tensor.name in OTHER:
            weights[OTHER[tensor.name]] = array
            continue
        _, layer, part, _ = tensor.name.split(".")
        if part in heads:  # pairs that turn together lie side by side in the file, half a head apart here
            array = array.reshape(heads[part], -1, 2, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)
        weights[f"model.layers.{layer}.{LAYER[part]}.weight"] = array
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    return types.SimpleNamespace(config=config, weights=weights,
                                 tokens=reader.fields["tokenizer.ggml.tokens"].contents())


def tokenize(loam, path, text):
    """Ids of a text without the begin token, by `loam tokenize`."""
    command = [loam, "tokenize", "-m", path, "-f", "-", "--json"]
    return json.loads(subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout)["ids"]
