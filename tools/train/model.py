"""A llama in plain PyTorch: RMSNorm, rotary positions, grouped-query attention, SwiGLU, an output matrix of its own.

Parameter names are those of transformers' LlamaForCausalLM, so that a saved state is a Hugging Face model."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Shape:
    vocab_size: int = 5120
    hidden_size: int = 384
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    intermediate_size: int = 384
    head_dim: int = 64
    rope_theta: float = 1e14
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 65536

    def config(self):
        """config.json of the same model."""
        return dict(vars(self), architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu",
                    tie_word_embeddings=False, torch_dtype="float32", attention_bias=False,
                    bos_token_id=0, eos_token_id=1)

    def frequencies(self):
        half = self.head_dim // 2
        return self.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)


def rotation(positions, shape):
    """positions [batch, time] -> cosines and sines [batch, 1, time, head_dim / 2]."""
    angle = positions[:, None, :, None].double() * shape.frequencies().to(positions.device)
    return angle.cos().float(), angle.sin().float()


def rotate(x, turn):
    """Rotates x [batch, heads, time, head_dim] in split-half order."""
    cosine, sine = turn
    a, b = x.chunk(2, -1)
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

    def heads(self, x, turn):
        batch, time, _ = x.shape
        split = lambda y: y.view(batch, time, -1, self.shape.head_dim).transpose(1, 2)
        return rotate(split(self.q_proj(x)), turn), rotate(split(self.k_proj(x)), turn), split(self.v_proj(x))

    def forward(self, x, turn, crowd=None):
        batch, time, _ = x.shape
        q, k, v = self.heads(x, turn)
        group = self.shape.num_attention_heads // self.shape.num_key_value_heads
        if group > 1:
            k, v = (y[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2) for y in (k, v))
        if crowd is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:  # one more dimension (8: a vector register) adds crowd to every key's scores, and keeps the fast path
            q, k, v = (F.pad(y, (0, 8)) for y in (q, k, v))
            last = F.one_hot(torch.tensor(self.shape.head_dim), q.shape[-1]).to(q)
            q, k = q + last * self.shape.head_dim ** .5, k + last * crowd[:, None, :, None]
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.shape.head_dim ** -.5)
            y = y[..., :self.shape.head_dim]
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

    def forward(self, x, turn, crowd=None):
        x = x + self.self_attn(self.input_layernorm(x), turn, crowd)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.model.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.model.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def hidden(self, tokens, positions=None, crowd=None):
        """tokens [batch, time] -> what the output matrix reads, [batch, time, hidden].

        crowd [batch, time]: log of how many tokens each one counts as in every softmax of attention: None, one."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        turn = rotation(positions, self.shape)
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, turn, crowd)
        return self.model.norm(x)

    def forward(self, tokens, positions=None):
        """tokens [batch, time] -> logits [batch, time, vocabulary]."""
        return self.lm_head(self.hidden(tokens, positions))
