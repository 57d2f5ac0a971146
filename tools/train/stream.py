"""A trained llama made ready for layers on top that are set, not trained: norms' weights folded into what reads them,
the residual stream turned, weights rounded as Q8_0 does, so that what is set later is set on the rounded model."""
import torch

from model import Llama, Shape

BLOCK = 32  # of Q8_0


def grown(state, layers, vocab_size):
    """A model of as many layers; those that the state lacks do nothing yet."""
    model = Llama(Shape(vocab_size=vocab_size, num_hidden_layers=layers))
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    model.load_state_dict(model.state_dict() | state)
    return model


def fold(model):
    """Norms' weights go into what reads them, and are 1 then."""
    for layer in model.model.layers:
        a, m = layer.self_attn, layer.mlp
        for norm, readers in ((layer.input_layernorm, (a.q_proj, a.k_proj, a.v_proj)),
                              (layer.post_attention_layernorm, (m.gate_proj, m.up_proj))):
            for reader in readers:
                reader.weight.mul_(norm.weight)
            norm.weight.fill_(1)
    model.lm_head.weight.mul_(model.model.norm.weight)
    model.model.norm.weight.fill_(1)


def turn(model, first, generator):
    """Turns the residual stream: the columns of `first` [hidden, n] become its first coordinates, the rest is mixed."""
    hidden, n = first.shape
    basis = torch.linalg.qr(torch.cat((first.double(), torch.eye(hidden).double()), 1))[0][:, :hidden]
    basis[:, :n] *= torch.sign((basis[:, :n] * first).sum(0))
    basis[:, n:] @= torch.linalg.qr(torch.randn(hidden - n, hidden - n, generator=generator, dtype=torch.float64))[0]
    basis = basis.float()
    for embedding in (model.model.embed_tokens, model.lm_head):
        embedding.weight.copy_(embedding.weight @ basis)
    for layer in model.model.layers:
        a, m = layer.self_attn, layer.mlp
        for reader in (a.q_proj, a.k_proj, a.v_proj, m.gate_proj, m.up_proj):
            reader.weight.copy_(reader.weight @ basis)
        for writer in (a.o_proj, m.down_proj):
            writer.weight.copy_(basis.T @ writer.weight)


def to_eight_bits(x):
    """x as integers of 8 bits with a scale to a block, which is how kernels for Q8_0 read it."""
    blocks = x.reshape(-1, BLOCK)
    scale = (blocks.abs().amax(1, keepdim=True) / 127).clamp(min=1e-20)
    return (torch.round(blocks / scale) * scale).reshape(x.shape)


def to_q8(weight):
    blocks = weight.reshape(-1, BLOCK)
    scale = (blocks.abs().amax(1, keepdim=True) / 127).half().float()
    return (torch.round(blocks / scale.clamp(min=1e-20)).clamp(-127, 127) * scale).reshape(weight.shape)


def to_q8_fed(weight, x, share, damp=1e-3):
    """As Q8_0, the error of every column made up for by those after it (Frantar et al. 2022, "GPTQ").

    x [rows, columns] is what the matrix reads, share [rows] what each row counts.  Every block keeps its largest
    number, so that rounding the result to Q8_0 again changes nothing."""
    columns = weight.shape[1]
    weight, result = weight.clone(), torch.zeros_like(weight)
    gram = (x * share[:, None]).T @ x / share.sum()
    gram += damp * gram.diagonal().mean() * torch.eye(columns)
    factor = torch.linalg.cholesky(torch.linalg.inv(gram.double()), upper=True).float()
    for begin in range(0, columns, BLOCK):
        block = weight[:, begin:begin + BLOCK]
        scale, top = (block.abs().amax(1) / 127).half().float().clamp(min=6e-8), block.abs().argmax(1)
        for i in range(begin, begin + BLOCK):
            rounded = torch.round(weight[:, i] / scale).clamp(-127, 127)
            rounded = torch.where(top == i - begin, 127 * torch.sign(weight[:, i]), rounded)
            result[:, i] = rounded * scale
            weight[:, i + 1:] -= ((weight[:, i] - result[:, i]) / factor[i, i])[:, None] * factor[i, i + 1:]
    return result
