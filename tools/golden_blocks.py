#!/usr/bin/env python3
"""Makes tests/kernels/golden_blocks.h: random blocks of every quantised type, and what the `gguf` Python package
(pip install gguf; the numpy decoders that llama.cpp publishes) decodes them to.

    python3 tools/golden_blocks.py > tests/kernels/golden_blocks.h

Scales are any finite half, subnormals and both signs included; all other bytes are uniform.  The expected floats
are kept as a 64-bit FNV-1a hash of their bits, with the first four in full for a readable failure.
"""
import numpy
import gguf
from gguf import GGMLQuantizationType as T

SEED, BLOCKS = 20261121, 3
# type: byte offsets of the halves in a block
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
    "MXFP4": [], "NVFP4": [], "IQ3_S": [0], "IQ3_XXS": [0], "IQ2_S": [0], "IQ2_XS": [0], "IQ2_XXS": [0],
    "IQ1_S": [0], "IQ1_M": [],
}


def fnv1a(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def finite_half(random) -> int:
    while True:
        bits = int(random.integers(0, 65536))
        if (bits >> 10 & 31) != 31:
            return bits


def main() -> None:
    random = numpy.random.default_rng(SEED)
    print(f"/* Made by tools/golden_blocks.py with gguf's decoders, seed {SEED}; do not edit. */")
    print("#pragma once\n")
    print("#include <stddef.h>\n#include <stdint.h>\n\n#include \"tensor/type.h\"\n")
    print("struct golden_blocks {\n    enum tensor_type type;\n    size_t elements;\n    const uint8_t *bytes;")
    print("    uint64_t hash;     /* FNV-1a of the decoded floats, little-endian */")
    print("    uint32_t first[4]; /* the bits of the first four */\n};\n")
    table = []
    for name, halves in HALVES.items():
        kind = getattr(T, name)
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (BLOCKS, size), dtype=numpy.uint8)
        for block in blocks:
            for at in halves:
                bits = finite_half(random)
                block[at], block[at + 1] = bits & 255, bits >> 8
            if name == "IQ1_M":  # the half is in the high nibbles of the last four odd bytes
                bits = finite_half(random)
                for i in range(4):
                    block[49 + 2 * i] = block[49 + 2 * i] & 15 | (bits >> 4 * i & 15) << 4
        decoded = gguf.quants.dequantize(blocks.reshape(1, -1), kind).astype("<f4").reshape(-1)
        data = blocks.tobytes()
        print(f"static const uint8_t golden_{name.lower()}[{len(data)}] = {{")
        for i in range(0, len(data), 20):
            print("    " + ", ".join(f"{b}" for b in data[i:i + 20]) + ",")
        print("};")
        bits = decoded[:4].view("<u4")
        first = ", ".join(f"0x{int(b):08x}u" for b in bits)
        table.append(f"    {{TENSOR_{name}, {elements * BLOCKS}, golden_{name.lower()}, "
                     f"0x{fnv1a(decoded.tobytes()):016x}u, {{{first}}}}},")
    print("\nstatic const struct golden_blocks golden_blocks[] = {")
    print("\n".join(table))
    print("};")


main()
