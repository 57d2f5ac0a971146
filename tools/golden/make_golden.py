#!/usr/bin/env python3
"""Writes tests/golden/: tiny random models of each family and rotary scaling as Hugging Face folders, with what
Hugging Face transformers computes for them in float32 on the CPU.

    python3 tools/golden/make_golden.py tests/golden [CASE...]     (torch, transformers, tokenizers, safetensors, and
                                                                    for mixtures of experts gguf, from PyPI)

Weights are random but scaled so that attention is far from uniform and every bias and norm matters, and rounded to
bfloat16, so that the 16-bit file holds exactly what was computed with. golden.safetensors of each folder holds
input_ids [tokens], hidden [layers][tokens][hidden] (the residual stream after each layer; the final norm not
applied) and logits of every eighth token, [7, 15, ...][vocabulary].

Families that loam does not import from folders are GGUF files (model.gguf), with the keys, names and shapes that
llama.cpp's converter writes. golden.safetensors of mixtures of experts has the router's picks as well,
[layers with experts][tokens][used], best first. A
seed is rejected where the last expert (or group of experts) that is picked and the first that is not are closer than
NEAR in what any router chooses by: what 16 bits of K and V change would pick another."""
import json
import os
import sys

import numpy
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

TOKENS, NEAR = 56, 1e-2
BASE = dict(vocab_size=288, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            intermediate_size=48, rms_norm_eps=1e-5, max_position_embeddings=64, rope_theta=10000.0,
            bos_token_id=0, eos_token_id=1, pad_token_id=1, tie_word_embeddings=True, hidden_act="silu", torch_dtype="bfloat16")
LLAMA = dict(BASE, model_type="llama", architectures=["LlamaForCausalLM"], attention_bias=False, mlp_bias=False)
QWEN2 = dict(BASE, model_type="qwen2", architectures=["Qwen2ForCausalLM"], num_attention_heads=2, num_key_value_heads=1,
             rms_norm_eps=1e-6, use_sliding_window=False)
QWEN2.pop("head_dim")
DELTA = dict(num_hidden_layers=4, layer_types=["linear_attention", "full_attention"] * 2, rms_norm_eps=1e-6,
             tie_word_embeddings=False, attention_bias=False, linear_conv_kernel_dim=4, linear_num_key_heads=2,
             linear_num_value_heads=6, linear_key_head_dim=16, linear_value_head_dim=24,
             rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                              "mrope_section": [1, 1, 0], "mrope_interleaved": True})
# float32, or the factors of embeddings are rounded
GEMMA4 = dict(BASE, model_type="gemma4_text", architectures=["Gemma4ForCausalLM"], num_hidden_layers=4, rms_norm_eps=1e-6,
              torch_dtype="float32", hidden_activation="gelu_pytorch_tanh", attention_bias=False, sliding_window=20,
              head_dim=8, global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True, final_logit_softcapping=10.0,
              hidden_size_per_layer_input=0, layer_types=["sliding_attention", "full_attention"] * 2, rope_theta=None,
              rope_parameters={
                  "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 100000.0},
                  "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})
GRANITE = dict(embedding_multiplier=1.5, rms_norm_eps=0.02, residual_multiplier=0.25, attention_multiplier=0.125,
               logits_scaling=4.0)
GRANITEMOE = dict(LLAMA | GRANITE, model_type="granitemoe", architectures=["GraniteMoeForCausalLM"], intermediate_size=32,
                  num_local_experts=8, num_experts_per_tok=3)
CASES = {
    "llama-gqa-tied": LLAMA,
    "llama-mha-untied": dict(LLAMA, num_key_value_heads=4, tie_word_embeddings=False),
    "llama-linear": dict(LLAMA, rope_scaling={"type": "linear", "rope_type": "linear", "factor": 4.0}),
    "llama-yarn": dict(LLAMA, rope_scaling={"type": "yarn", "rope_type": "yarn", "factor": 4.0,
                                            "original_max_position_embeddings": 16}),
    "llama3-factors": dict(LLAMA, rope_theta=500000.0, rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}),
    "mistral-window": dict(BASE, model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=20),
    "qwen2-bias": QWEN2,
    "qwen2-yarn": dict(QWEN2, rope_theta=1000000.0, rope_scaling={"type": "yarn", "rope_type": "yarn", "factor": 4.0,
                                                                  "original_max_position_embeddings": 16}),
    "qwen3-norms": dict(BASE, model_type="qwen3", architectures=["Qwen3ForCausalLM"], rms_norm_eps=1e-6,
                        attention_bias=False, use_sliding_window=False, tie_word_embeddings=False),
    "opt": dict(model_type="opt", architectures=["OPTForCausalLM"], vocab_size=288, hidden_size=32, num_hidden_layers=2,
                num_attention_heads=4, ffn_dim=64, max_position_embeddings=64, word_embed_proj_dim=32, do_layer_norm_before=True,
                activation_function="relu", bos_token_id=0, eos_token_id=1, pad_token_id=1, tie_word_embeddings=True,
                enable_bias=True, layer_norm_elementwise_affine=True, torch_dtype="bfloat16"),
    "qwen3moe": dict(BASE, model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], rms_norm_eps=1e-6,
                     attention_bias=False, use_sliding_window=False, tie_word_embeddings=False, num_experts=8,
                     num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True, decoder_sparse_step=1,
                     mlp_only_layers=[]),
    "smollm3": dict(LLAMA, model_type="smollm3", architectures=["SmolLM3ForCausalLM"], num_hidden_layers=4,
                    no_rope_layer_interval=4, use_sliding_window=False),
    "seed-oss": dict(BASE, model_type="seed_oss", architectures=["SeedOssForCausalLM"], rms_norm_eps=1e-6,
                     attention_bias=True, attention_out_bias=False, mlp_bias=False, tie_word_embeddings=False),
    "mistral3": dict(BASE, model_type="ministral3", architectures=["Ministral3ForCausalLM"], sliding_window=None,
                     rope_parameters={"rope_type": "yarn", "type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                                      "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0,
                                      "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.2}),
    "qwen2moe": dict(QWEN2, model_type="qwen2_moe", architectures=["Qwen2MoeForCausalLM"], num_attention_heads=4,
                     num_key_value_heads=2, head_dim=8, tie_word_embeddings=False, num_experts=8, num_experts_per_tok=3,
                     moe_intermediate_size=32, shared_expert_intermediate_size=40, norm_topk_prob=False,
                     decoder_sparse_step=1, mlp_only_layers=[]),
    "glm4moe": dict(BASE, model_type="glm4_moe", architectures=["Glm4MoeForCausalLM"], num_hidden_layers=3,
                    attention_bias=True, use_qk_norm=True, tie_word_embeddings=False, n_routed_experts=8, n_group=4,
                    topk_group=2, num_experts_per_tok=3, n_shared_experts=2, moe_intermediate_size=16,
                    first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=1.5, num_mtp_layers=0,
                    rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    "gpt-oss": dict(BASE, model_type="gpt_oss", architectures=["GptOssForCausalLM"], attention_bias=True,
                    tie_word_embeddings=False, sliding_window=20, num_local_experts=8, num_experts_per_tok=3,
                    intermediate_size=32, moe_intermediate_size=32,
                    rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0,
                                     "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 16}),
    "lfm2": dict(BASE, model_type="lfm2", architectures=["Lfm2ForCausalLM"], num_hidden_layers=4, head_dim=8, norm_eps=1e-5,
                 conv_L_cache=3, block_auto_adjust_ff_dim=False, full_attn_idxs=[1, 3],
                 layer_types=["conv", "full_attention", "conv", "full_attention"]),
    "qwen35": dict(BASE | DELTA, model_type="qwen3_5_text", architectures=["Qwen3_5ForCausalLM"]),
    "qwen35moe": dict(BASE | DELTA, model_type="qwen3_5_moe_text", architectures=["Qwen3_5MoeForCausalLM"],
                      num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], num_experts=8,
                      num_experts_per_tok=3, moe_intermediate_size=32, shared_expert_intermediate_size=40),
    "gemma3": dict(BASE, model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], num_hidden_layers=4, rms_norm_eps=1e-6,
                   torch_dtype="float32",  # or the factor of embeddings is rounded
                   hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=16, attention_bias=False, sliding_window=20,
                   layer_types=["sliding_attention", "full_attention"] * 2, rope_theta=None, rope_parameters={
                       "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100000.0},
                       "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}),
    "olmo2": dict(BASE, model_type="olmo2", architectures=["Olmo2ForCausalLM"], head_dim=8, attention_bias=False,
                  tie_word_embeddings=False),
    "olmo3": dict(BASE, model_type="olmo3", architectures=["Olmo3ForCausalLM"], head_dim=8, attention_bias=False,
                  tie_word_embeddings=False, num_hidden_layers=4, sliding_window=20,
                  layer_types=["sliding_attention", "full_attention"] * 2, rope_parameters={
                      "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                      "full_attention": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0,
                                         "beta_slow": 1.0, "original_max_position_embeddings": 16}}),
    "exaone4": dict(BASE, model_type="exaone4", architectures=["Exaone4ForCausalLM"], head_dim=8, num_hidden_layers=4,
                    sliding_window=20, sliding_window_pattern=4, layer_types=["sliding_attention"] * 3 + ["full_attention"]),
    "lfm2moe": dict(BASE, model_type="lfm2_moe", architectures=["Lfm2MoeForCausalLM"], num_hidden_layers=4, head_dim=8,
                    norm_eps=1e-5, conv_L_cache=3, layer_types=["conv", "full_attention"] * 2, num_dense_layers=1,
                    num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, use_expert_bias=True,
                    norm_topk_prob=True, routed_scaling_factor=1.0),
    "qwen3next": dict(BASE | DELTA, model_type="qwen3_next", architectures=["Qwen3NextForCausalLM"], num_hidden_layers=2,
                      layer_types=["linear_attention", "full_attention"], num_experts=8, num_experts_per_tok=3,
                      moe_intermediate_size=32, shared_expert_intermediate_size=40, norm_topk_prob=True,
                      decoder_sparse_step=1, mlp_only_layers=[], rope_parameters={
                          "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}),
    "gemma4": GEMMA4,
    "gemma4-experts": dict(GEMMA4, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"],
                           enable_moe_block=True, num_experts=8, top_k_experts=3, num_experts_per_tok=3,
                           moe_intermediate_size=32),
    "gemma4-inputs": dict(GEMMA4, attention_k_eq_v=False, num_global_key_value_heads=None, num_kv_shared_layers=2,
                          use_double_wide_mlp=True, hidden_size_per_layer_input=8, vocab_size_per_layer_input=288),
    "minimax-m2": dict(BASE, model_type="minimax_m2", architectures=["MiniMaxM2ForCausalLM"], rms_norm_eps=1e-6,
                       tie_word_embeddings=False, intermediate_size=32, moe_intermediate_size=32, num_local_experts=8,
                       num_experts_per_tok=3, rope_parameters={
                           "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    "gemma2": dict(BASE, model_type="gemma2", architectures=["Gemma2ForCausalLM"], num_hidden_layers=4, rms_norm_eps=1e-6,
                   torch_dtype="float32", hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=16,
                   attention_bias=False, sliding_window=20, layer_types=["sliding_attention", "full_attention"] * 2,
                   attn_logit_softcapping=4.0, final_logit_softcapping=10.0),
    "phi3": dict(BASE, model_type="phi3", architectures=["Phi3ForCausalLM"], tie_word_embeddings=False, head_dim=8,
                 rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}),
    "phi3-longrope": dict(BASE, model_type="phi3", architectures=["Phi3ForCausalLM"], head_dim=8, sliding_window=None,
                          original_max_position_embeddings=16, rope_parameters={
                              "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16,
                              "short_factor": [1.0, 1.0, 1.1, 1.2], "long_factor": [1.0, 1.5, 2.5, 4.0]}),
    "glm4": dict(BASE, model_type="glm4", architectures=["Glm4ForCausalLM"], attention_bias=True, tie_word_embeddings=False,
                 rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    "granite": dict(LLAMA, model_type="granite", architectures=["GraniteForCausalLM"], **GRANITE),
    "granitemoe": GRANITEMOE,
    "granitemoe-shared": dict(GRANITEMOE, model_type="granitemoeshared", architectures=["GraniteMoeSharedForCausalLM"],
                              shared_intermediate_size=40),
    "cohere2": dict(BASE, model_type="cohere2", architectures=["Cohere2ForCausalLM"], num_hidden_layers=4, head_dim=8,
                    layer_norm_eps=0.02, attention_bias=False, sliding_window=20, logit_scale=0.25,
                    layer_types=["sliding_attention"] * 3 + ["full_attention"]),
}


def tokenizer_json():
    """A byte-level BPE of 288 tokens: two control tokens, 256 bytes, 30 merges of common pairs."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<|begin|>": 0, "<|end|>": 1}
    for symbol in alphabet:
        vocabulary[symbol] = len(vocabulary)
    merges = [tuple(pair) for pair in "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le".split()]
    for a, b in merges:
        vocabulary[a + b] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    return tokenizer


def add_tokenizer(writer):
    """The same, and a template that ends turns with the token that ends an answer."""
    import gguf  # only here
    model = json.loads(tokenizer_json().to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(tokens) - 2))
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{% for m in messages %}{{ bos_token ~ m.role ~ '\n' ~ m.content ~ eos_token }}{% endfor %}"
                             "{% if add_generation_prompt %}{{ bos_token ~ 'assistant\n' }}{% endif %}")


def is_zero_centred(family, name):
    """Norms of Qwen3-Next, Qwen3.5 and Gemma multiply by 1 + weight, but those behind a delta net."""
    return family.startswith(("qwen3_5", "qwen3_next", "gemma2", "gemma3")) and name.endswith("norm.weight") and "linear_attn" not in name


def randomise(model, generator):
    favour = 2.0 if len(layers_of(model)) == 2 else 1.0  # the differences of K in 16 bits grow by layers
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("router.scale"):  # so that scores are apart
            value = 4 * parameter.shape[0] ** 0.5 * (0.2 * noise + 1)
        elif parameter.dim() == 1 and name.endswith(("norm.weight", "norm_1.weight", "norm_2.weight", "expert_scale")):
            value = 0.2 * noise + (0 if is_zero_centred(model.config.model_type, name) else 1)
        elif name.endswith("A_log"):
            value = 0.5 * noise - 2  # some heads remember the whole text
        elif parameter.dim() == 1:
            value = 0.2 * noise  # biases
        elif "embed" in name:
            value = 0.5 * noise
        elif name.endswith("sinks"):
            value = noise
        elif "experts." in name and model.config.model_type == "gpt_oss":  # [experts][in][out], and [experts][out]
            down = "down_proj" in name  # biases are such that some gates are clamped
            value = ((0.2 if down else 3) * noise if parameter.dim() == 2 else
                     (0.1 if down else 1) * noise / parameter.shape[-2] ** 0.5)
        else:  # q and k larger, so that softmax has a clear favourite
            value = noise * (favour if ".q_proj" in name or ".k_proj" in name else 1.0) / parameter.shape[-1] ** 0.5
        parameter.data = value.to(torch.bfloat16).float()
    for name, buffer in model.named_buffers():
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
        if name.endswith("layer_scalar"):
            buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator) + 1)


def layers_of(model):
    return model.model.decoder.layers if model.config.model_type == "opt" else model.model.layers


# What llama.cpp's converter calls each family, and where it differs from llama's tensors. permutes: rows of q and k are
# in the order of adjacent pairs.
LFM2 = dict(output_norm="token_embd_norm", their_norm="embedding_norm", attn_norm="operator_norm",
            attn_output="self_attn.out_proj", attn_q_norm="self_attn.q_layernorm", attn_k_norm="self_attn.k_layernorm",
            ffn_norm="ffn_norm", ffn_gate="feed_forward.w1", ffn_up="feed_forward.w3", ffn_down="feed_forward.w2")
GGUF = {
    "qwen3_moe": dict(name="qwen3moe"),
    "smollm3": dict(name="smollm3", permutes=True),
    "ministral3": dict(name="mistral3", permutes=True),
    "seed_oss": dict(name="seed_oss", norm="post_attention_norm"),
    "qwen2_moe": dict(name="qwen2moe"),
    "glm4_moe": dict(name="glm4moe", norm="post_attention_norm"),
    "minimax_m2": dict(name="minimax-m2"),
    "gpt_oss": dict(name="gpt-oss", norm="post_attention_norm", ffn_gate_inp="mlp.router"),
    "lfm2": dict(name="lfm2", **LFM2),
    "lfm2_moe": dict(name="lfm2moe", mlp="feed_forward", ffn_gate_inp="feed_forward.gate", **LFM2),
    "qwen3_next": dict(name="qwen3next", norm="post_attention_norm"),
    "gemma2": dict(name="gemma2", ffn_norm="pre_feedforward_layernorm", post_attention_norm="post_attention_layernorm"),
    "gemma3_text": dict(name="gemma3", ffn_norm="pre_feedforward_layernorm", post_attention_norm="post_attention_layernorm"),
    "gemma4_text": dict(name="gemma4", ffn_norm="pre_feedforward_layernorm", post_attention_norm="post_attention_layernorm",
                        ffn_gate_inp="router.proj", inp_gate="per_layer_input_gate", proj="per_layer_projection",
                        post_norm="post_per_layer_input_norm", pre_ffw_norm_2="pre_feedforward_layernorm_2",
                        post_ffw_norm_1="post_feedforward_layernorm_1", post_ffw_norm_2="post_feedforward_layernorm_2"),
    "phi3": dict(name="phi3", ffn_up="mlp.gate_up_proj"),
    "glm4": dict(name="glm4", ffn_up="mlp.gate_up_proj", ffn_norm="post_attention_layernorm",
                 post_attention_norm="post_self_attn_layernorm", post_ffw_norm="post_mlp_layernorm"),
    "cohere2": dict(name="cohere2", ffn_norm=""),
    "granite": dict(name="granite", permutes=True),
    "granitemoe": dict(name="granitemoe", permutes=True, mlp="block_sparse_moe", ffn_gate_inp="block_sparse_moe.router"),
    "granitemoeshared": dict(name="granitemoe", permutes=True, mlp="block_sparse_moe", ffn_gate_inp="block_sparse_moe.router"),
    "olmo2": dict(name="olmo2", ffn_norm="", post_attention_norm="post_attention_layernorm"),
    "olmo3": dict(name="olmo2", ffn_norm="", post_attention_norm="post_attention_layernorm"),
    "exaone4": dict(name="exaone4", ffn_norm="", post_attention_norm="post_attention_layernorm"),
    "qwen3_5_text": dict(name="qwen35", norm="post_attention_norm"),
    "qwen3_5_moe_text": dict(name="qwen35moe", norm="post_attention_norm"),
}
TENSORS = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
           "attn_v": "self_attn.v_proj", "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
           "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate",
           "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
           "ffn_gate_inp_shexp": "mlp.shared_expert_gate", "post_attention_norm": "", "post_ffw_norm": "post_feedforward_layernorm",
           "inp_gate": "", "proj": "", "post_norm": "", "pre_ffw_norm_2": "", "post_ffw_norm_1": "", "post_ffw_norm_2": ""}


def add_gemma4_keys(writer, config):
    layer_types, shared = config["layer_types"], config.get("num_kv_shared_layers", 0)
    slides, count = [kind == "sliding_attention" for kind in layer_types], len(layer_types)
    if config.get("use_double_wide_mlp"):
        writer.add_feed_forward_length([config["intermediate_size"] * (1 + (layer >= count - shared)) for layer in range(count)])
    else:
        writer.add_feed_forward_length(config["intermediate_size"])
    full = config["num_global_key_value_heads"] or config["num_key_value_heads"]
    writer.add_head_count_kv([config["num_key_value_heads"] if slide else full for slide in slides])
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    for add, size in ((writer.add_key_length, "global_head_dim"), (writer.add_value_length, "global_head_dim"),
                      (writer.add_key_length_swa, "head_dim"), (writer.add_value_length_swa, "head_dim"),
                      (writer.add_rope_dimension_count, "global_head_dim"), (writer.add_rope_dimension_count_swa, "head_dim")):
        add(config[size])
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])


CHOICE_BIASES = ("mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias", "feed_forward.expert_bias")


def write_gguf(model, config, path):
    """As llama.cpp's converter writes it: matrices in bfloat16, vectors and the router in float32."""
    import gguf  # only here
    family = GGUF[config["model_type"]]
    writer = gguf.GGUFWriter(path, family["name"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    layer_types = config.get("layer_types")
    is_gemma4 = config["model_type"] == "gemma4_text"
    if is_gemma4:
        add_gemma4_keys(writer, config)
    else:
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count_kv([config["num_key_value_heads"] if kind == "full_attention" else 0 for kind in layer_types]
                                 if "conv_L_cache" in config else config["num_key_value_heads"])
    if "conv_L_cache" in config:
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    if "linear_num_key_heads" in config:
        writer.add_uint32(family["name"] + ".full_attention_interval", layer_types.index("full_attention") + 1)
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])
        writer.add_rope_dimension_count(int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]))
    if "mrope_section" in config.get("rope_parameters", {}):  # of text all are one position
        writer.add_rope_dimension_sections([*config["rope_parameters"]["mrope_section"], 0])
    if "conv_L_cache" in config or "linear_num_key_heads" in config:  # those that the command line is tested with
        add_tokenizer(writer)
    if "head_dim" in config and not is_gemma4:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if "layer_norm_eps" in config:
        writer.add_layer_norm_eps(config["layer_norm_eps"])
        writer.add_logit_scale(config["logit_scale"])
    else:
        writer.add_layer_norm_rms_eps(config.get("norm_eps", config["rms_norm_eps"]))
    rope = config.get("rope_parameters", config)
    if "full_attention" in rope:  # of each kind of layers; those that slide have no scaling
        if not is_gemma4:
            writer.add_uint32(family["name"] + ".attention.sliding_window_pattern", layer_types.index("full_attention") + 1)
        rope = rope["full_attention"]
    if "attn_logit_softcapping" in config:
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config["model_type"] == "gemma3_text":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_freq_base(rope["rope_theta"])
    if "llama_4_scaling_beta" in rope:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if "num_experts_per_tok" in config:
        writer.add_expert_count(next(config[key] for key in ("num_experts", "n_routed_experts", "num_local_experts")
                                     if key in config))
        writer.add_expert_used_count(config["num_experts_per_tok"])
        if "moe_intermediate_size" in config:  # else intermediate_size is that of experts
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
        if rope.get("rope_type") == "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "num_dense_layers" in config:
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    for name in ("shared_expert_intermediate_size", "shared_intermediate_size"):
        if name in config:
            writer.add_expert_shared_feed_forward_length(config[name])
    if config["model_type"] in ("glm4", "glm4_moe", "minimax_m2", "phi3"):
        writer.add_rope_dimension_count(int(config["head_dim"] * rope.get("partial_rotary_factor", 1)))
    if config["model_type"] in ("glm4_moe", "minimax_m2"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if "residual_multiplier" in config:
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if "long_factor" in rope:  # transformers' factor of cos and sin, of a context so many times as long
        original = rope["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors((1 + numpy.log(config["max_position_embeddings"] / original) / numpy.log(original)) ** 0.5)
    if "n_routed_experts" in config:
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])

    def add(name, value):
        value = value.detach().float().contiguous().numpy()
        if value.ndim == 1 or "ffn_gate_inp" in name or "conv1d" in name or ".conv." in name or name.endswith("bias"):
            return writer.add_tensor(name, value)
        bits = (value.view(numpy.uint32) >> 16).astype(numpy.uint16)  # exact: see randomise
        writer.add_tensor(name, bits.view(numpy.uint8).reshape(*value.shape[:-1], -1),
                          raw_dtype=gguf.GGMLQuantizationType.BF16)

    def permuted(value, heads):
        return value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)

    def tiled(value, first, width, dim=0):
        """Value heads from `first` on, of `width` each: those of a key head lie together at theirs, as far apart as there
        are key heads at llama.cpp's."""
        keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        own = value.narrow(dim, first, heads * width)
        shape = [*own.shape[:dim], keys, heads // keys, width, *own.shape[dim + 1:]]
        own = own.reshape(shape).transpose(dim, dim + 1).reshape(own.shape)
        return torch.cat([value.narrow(dim, 0, first), own], dim)

    def add_grouped_delta(ours, theirs):
        """Of Qwen3-Next: q, k, v and z of each key head in turn, in one matrix; value heads stay where they are."""
        keys, k = config["linear_num_key_heads"], config["linear_key_head_dim"]
        v = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
        parts = state[theirs + "in_proj_qkvz.weight"].reshape(keys, 2 * k + 2 * v, -1).split([k, k, v, v], dim=1)
        parts = [part.reshape(-1, part.shape[-1]) for part in parts]
        add(ours + "attn_qkv.weight", torch.cat(parts[:3]))
        add(ours + "attn_gate.weight", parts[3])
        add(ours + "ssm_conv1d.weight", state[theirs + "conv1d.weight"].squeeze(1))
        add(ours + "ssm_ba.weight", state[theirs + "in_proj_ba.weight"])
        add(ours + "ssm_dt.bias", state[theirs + "dt_bias"])
        add(ours + "ssm_a", -state[theirs + "A_log"].exp())
        add(ours + "ssm_norm.weight", state[theirs + "norm.weight"])
        add(ours + "ssm_out.weight", state[theirs + "out_proj.weight"])

    def add_delta(ours, theirs):
        keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
        width = config["linear_value_head_dim"]
        add(ours + "attn_qkv.weight", tiled(state[theirs + "in_proj_qkv.weight"], keys, width))
        add(ours + "attn_gate.weight", tiled(state[theirs + "in_proj_z.weight"], 0, width))
        add(ours + "ssm_conv1d.weight", tiled(state[theirs + "conv1d.weight"].squeeze(1), keys, width))
        add(ours + "ssm_alpha.weight", tiled(state[theirs + "in_proj_a.weight"], 0, 1))
        add(ours + "ssm_beta.weight", tiled(state[theirs + "in_proj_b.weight"], 0, 1))
        add(ours + "ssm_dt.bias", tiled(state[theirs + "dt_bias"], 0, 1))
        add(ours + "ssm_a", -tiled(state[theirs + "A_log"], 0, 1).exp())
        add(ours + "ssm_norm.weight", state[theirs + "norm.weight"])
        add(ours + "ssm_out.weight", tiled(state[theirs + "out_proj.weight"], 0, width, 1))

    state = {name: value + 1 if is_zero_centred(config["model_type"], name) else value
             for name, value in model.state_dict().items()}
    add("token_embd.weight", state["model.embed_tokens.weight"])
    add(family.get("output_norm", "output_norm") + ".weight", state[f"model.{family.get('their_norm', 'norm')}.weight"])
    if not config["tie_word_embeddings"]:
        add("output.weight", state["lm_head.weight"])
    if "long_factor" in rope:
        for kind in ("long", "short"):
            add(f"rope_factors_{kind}.weight", torch.tensor(rope[kind + "_factor"]))
    if is_gemma4:  # what is not rotated turns by next to nothing
        pairs, turned = config["global_head_dim"] // 2, int(config["global_head_dim"] * rope["partial_rotary_factor"]) // 2
        add("rope_freqs.weight", torch.tensor([1.0] * turned + [1e30] * (pairs - turned)))
    if config.get("hidden_size_per_layer_input"):
        add("per_layer_token_embd.weight", state["model.embed_tokens_per_layer.weight"])
        add("per_layer_model_proj.weight", state["model.per_layer_model_projection.weight"])
        add("per_layer_proj_norm.weight", state["model.per_layer_projection_norm.weight"])
    for layer in range(config["num_hidden_layers"]):
        ours, theirs = f"blk.{layer}.", f"model.layers.{layer}."
        for name, source in TENSORS.items():
            for kind in ("weight", "bias"):
                value = state.get(f"{theirs}{family.get(name, source)}.{kind}")
                if value is None:
                    continue
                if family.get("permutes") and name in ("attn_q", "attn_k"):
                    value = permuted(value, config["num_attention_heads" if name == "attn_q" else "num_key_value_heads"])
                add(f"{ours}{family.get('norm', name) if name == 'ffn_norm' else name}.{kind}", value)
        if is_gemma4:
            add(ours + "layer_output_scale.weight", state[theirs + "layer_scalar"])
        if theirs + "router.scale" in state:
            add(ours + "ffn_gate_inp.scale", state[theirs + "router.scale"])
            add(ours + "ffn_down_exps.scale", state[theirs + "router.per_expert_scale"])
            add(ours + "ffn_gate_up_exps.weight", state[theirs + "experts.gate_up_proj"])
            add(ours + "ffn_down_exps.weight", state[theirs + "experts.down_proj"])
        if theirs + "linear_attn.A_log" in state:
            (add_grouped_delta if "qwen3_next" in config["model_type"] else add_delta)(ours, theirs + "linear_attn.")
        if theirs + "conv.conv.weight" in state:
            add(ours + "shortconv.conv.weight", state[theirs + "conv.conv.weight"].squeeze(1))
            add(ours + "shortconv.in_proj.weight", state[theirs + "conv.in_proj.weight"])
            add(ours + "shortconv.out_proj.weight", state[theirs + "conv.out_proj.weight"])
        for name in ("gate", "up", "down"):
            for shared in ("shared_expert", "shared_experts"):
                value = state.get(f"{theirs}mlp.{shared}.{name}_proj.weight")
                if value is not None:
                    add(f"{ours}ffn_{name}_shexp.weight", value)
        both = state.get(theirs + "shared_mlp.input_linear.weight")
        if both is not None:
            for name, value in zip(("gate", "up"), both.chunk(2)):
                add(f"{ours}ffn_{name}_shexp.weight", value)
            add(ours + "ffn_down_shexp.weight", state[theirs + "shared_mlp.output_linear.weight"])
        bias = next((state[theirs + name] for name in CHOICE_BIASES if theirs + name in state), None)
        if bias is not None:
            add(ours + "exp_probs_b.bias", bias)
        experts = theirs + family.get("mlp", "mlp") + ".experts."
        both = state.get(experts + "gate_up_proj")  # [experts][gate rows, then up rows][hidden]
        if both is None:
            continue
        size = config.get("moe_intermediate_size", config["intermediate_size"])
        if config["model_type"] == "gpt_oss":  # [experts][hidden][gate and up in turn]
            add(ours + "attn_sinks.weight", state[theirs + "self_attn.sinks"])
            bias = state[theirs + "mlp.experts.gate_up_proj_bias"]
            for name, first in (("gate", 0), ("up", 1)):
                add(f"{ours}ffn_{name}_exps.weight", both[:, :, first::2].transpose(1, 2))
                add(f"{ours}ffn_{name}_exps.bias", bias[:, first::2])
            add(ours + "ffn_down_exps.weight", state[theirs + "mlp.experts.down_proj"].transpose(1, 2))
            add(ours + "ffn_down_exps.bias", state[theirs + "mlp.experts.down_proj_bias"])
            continue
        add(ours + "ffn_gate_exps.weight", both[:, :size])
        add(ours + "ffn_up_exps.weight", both[:, size:])
        add(ours + "ffn_down_exps.weight", state[experts + "down_proj"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def router_of(mlp):
    """None: not a mixture of experts."""
    return getattr(mlp, "gate", getattr(mlp, "router", None))


def bias_of(mixture):
    """What a router is given beside the rows, to choose experts by; None: nothing."""
    return getattr(mixture, "expert_bias", getattr(mixture, "e_score_correction_bias", None))


def choices(mixture, x, config):
    """What the router chooses experts by, and how near the first that it does not pick comes to the last that it picks."""
    router = router_of(mixture)
    if hasattr(router, "per_expert_scale"):  # gemma4
        scores = router.proj(router.norm(x) * router.scale * router.scalar_root_size)
        return scores, gap(scores, config["num_experts_per_tok"])
    scores = x @ router.weight.T + (router.bias if "bias" in dict(router.named_parameters()) else 0)
    bias = getattr(router, "e_score_correction_bias", bias_of(mixture))
    if bias is None:
        return scores, gap(scores, config["num_experts_per_tok"])
    scores = scores.sigmoid() + bias
    if "n_group" not in config:
        return scores, 4 * gap(scores, config["num_experts_per_tok"])
    groups = scores.view(TOKENS, config["n_group"], -1)
    worth = groups.topk(2, dim=-1).values.sum(dim=-1)
    kept = torch.zeros_like(worth).scatter_(1, worth.topk(config["topk_group"], dim=-1).indices, 1)
    scores = groups.masked_fill(kept.unsqueeze(-1) == 0, float("-inf")).reshape(TOKENS, -1)
    nearest = min(gap(worth, config["topk_group"]), gap(scores, config["num_experts_per_tok"]))
    return scores, 4 * nearest  # a sigmoid's slope is at most 1/4: what the products would have to be apart


def gap(scores, used):
    """Between the last that is picked and the first that is not; among those that are picked, of which only the order
    changes, a tenth of it will do."""
    best = scores.sort(dim=-1, descending=True).values
    apart = best[:, :used] - best[:, 1:used + 1]
    return float(torch.cat([10 * apart[:, :-1], apart[:, -1:]], dim=-1).min())


def make_file(folder, config, seed):
    """The case as a GGUF file, with the first seed from `seed` on whose routers, if there are any, have no near ties."""
    os.makedirs(folder, exist_ok=True)
    near = 0.0
    while near < NEAR:
        generator = torch.Generator().manual_seed(seed)
        made = AutoConfig.for_model(**config)
        model = AutoModelForCausalLM.from_config(made, attn_implementation="eager").float().eval()
        randomise(model, generator)
        if config["tie_word_embeddings"]:
            model.tie_weights()
        ids = torch.randint(2, config["vocab_size"], (1, TOKENS), generator=generator)
        ids[0, 0] = 0
        hidden, inputs = [], []
        parts = [layer if hasattr(layer, "router") else
                 next((getattr(layer, name) for name in ("mlp", "feed_forward", "block_sparse_moe") if hasattr(layer, name)), None)
                 for layer in layers_of(model)]
        mixtures = [part for part in parts if router_of(part) is not None]
        for layer in layers_of(model):
            layer.register_forward_hook(lambda module, given, output: hidden.append(
                (output[0] if isinstance(output, tuple) else output).reshape(TOKENS, -1)))
        for mixture in mixtures:
            given_rows = mixture.router if hasattr(mixture, "experts") and hasattr(mixture, "self_attn") else mixture
            given_rows.register_forward_pre_hook(lambda module, given: inputs.append(given[0].reshape(TOKENS, -1)))
        with torch.no_grad():
            logits = model(ids).logits[0]
            judged = [choices(mixture, x, config) for x, mixture in zip(inputs, mixtures)]
        near = min([NEAR] + [least for scores, least in judged])
        for (scores, least), mixture, x in zip(judged, mixtures, inputs):  # transformers' own picks are these
            given = [x] if bias_of(mixture) is None else [x, bias_of(mixture)]
            theirs = router_of(mixture)(*given)[2].sort(dim=-1).values
            assert torch.equal(theirs, scores.topk(theirs.shape[1], dim=-1).indices.sort(dim=-1).values)
        seed += 1000
    write_gguf(model, config, os.path.join(folder, "model.gguf"))
    # loam's residual stream is without granite's factor of what layers add
    golden = {"input_ids": ids[0].to(torch.int32),
              "hidden": (torch.stack(hidden) / config.get("residual_multiplier", 1)).contiguous(),
              "logits": logits[7::8].contiguous()}
    if judged:
        used = config["num_experts_per_tok"]
        golden["picks"] = torch.stack([scores.topk(used, dim=-1).indices for scores, least in judged]).to(torch.int32)
    save_file(golden, os.path.join(folder, "golden.safetensors"))
    print(f"{folder}: seed {seed - 1000}, logits within +-{logits.abs().max():.2f}, "
          f"hidden within +-{torch.stack(hidden).abs().max():.2f}")


def make(folder, config, seed):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=1)
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), attn_implementation="eager").float().eval()
    randomise(model, generator)
    if config["tie_word_embeddings"]:
        model.tie_weights()
    ids = torch.randint(2, config["vocab_size"], (1, TOKENS), generator=generator)
    ids[0, 0] = 0
    hidden = []
    for layer in layers_of(model):
        layer.register_forward_hook(
            lambda module, inputs, output: hidden.append((output[0] if isinstance(output, tuple) else output).reshape(TOKENS, -1)))
    with torch.no_grad():
        logits = model(ids).logits[0]
    state = {name: value.to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()
             if not (config["tie_word_embeddings"] and name == "lm_head.weight")}
    save_file(state, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    save_file({"input_ids": ids[0].to(torch.int32), "hidden": torch.stack(hidden).contiguous(), "logits": logits[7::8].contiguous()},
              os.path.join(folder, "golden.safetensors"))
    tokenizer_json().save(os.path.join(folder, "tokenizer.json"))
    print(f"{folder}: logits within +-{logits.abs().max():.2f}, hidden within +-{torch.stack(hidden).abs().max():.2f}")


def main():
    out = sys.argv[1]
    for index, (name, config) in enumerate(CASES.items()):
        if len(sys.argv) == 2 or name in sys.argv[2:]:
            (make_file if config["model_type"] in GGUF else make)(os.path.join(out, name), config, 1000 + index)
    with open(os.path.join(out, "VERSIONS"), "w") as file:
        file.write(f"torch {torch.__version__.split('+')[0]}\ntransformers {transformers.__version__}\n")


main()
