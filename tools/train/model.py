"""A llama in plain PyTorch: RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied embeddings.

Parameter names are those of transformers' LlamaForCausalLM, so that a saved state is a Hugging Face model."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Shape:
    vocab_size: int = 2048
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    intermediate_size: int = 640
    head_dim: int = 64
    rope_theta: float = 500000.0
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 4096

    def config(self):
        """config.json of the same model."""
        return dict(vars(self), architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu",
                    tie_word_embeddings=True, torch_dtype="float32", attention_bias=False,
                    bos_token_id=0, eos_token_id=1)


def rotate(x, positions, theta):
    """Rotates x [batch, heads, time, head_dim] in split-half order."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions[:, None, :, None].float() * frequency
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        d, h = shape.hidden_size, shape.head_dim
        self.q_proj = nn.Linear(d, shape.num_attention_heads * h, bias=False)
        self.k_proj = nn.Linear(d, shape.num_key_value_heads * h, bias=False)
        self.v_proj = nn.Linear(d, shape.num_key_value_heads * h, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * h, d, bias=False)

    def forward(self, x, positions):
        batch, time, _ = x.shape
        split = lambda y: y.view(batch, time, -1, self.shape.head_dim).transpose(1, 2)
        q, k, v = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
        q, k = rotate(q, positions, self.shape.rope_theta), rotate(k, positions, self.shape.rope_theta)
        group = self.shape.num_attention_heads // self.shape.num_key_value_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, time, -1))


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x, positions):
        x = x + self.self_attn(self.input_layernorm(x), positions)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.model.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.model.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, positions=None):
        """tokens [batch, time] -> logits [batch, time, vocabulary]."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, positions)
        return self.model.norm(x) @ self.model.embed_tokens.weight.T
