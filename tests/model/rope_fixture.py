#!/usr/bin/env python3
"""rope_fixture.py > rope_fixture.h: frequencies of each rope kind, for tests/model/test_rope.c.

Written from the papers' formulas as Hugging Face transformers states them (modeling_rope_utils: inverse
frequencies by list, a ramp over dimension indices), not from loam's code.  Standard library only.
"""
import math


def inverse_frequencies(dim, base):
    return [1.0 / base ** (i / dim) for i in range(0, dim, 2)]


def yarn(dim, base, factor, original, fast=32.0, slow=1.0):
    def correction_dim(rotations):
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))
    low = max(math.floor(correction_dim(fast)), 0)
    high = min(math.ceil(correction_dim(slow)), dim - 1)
    if low == high:
        high += 0.001
    result = []
    for index, value in enumerate(inverse_frequencies(dim, base)):
        ramp = min(max((index - low) / (high - low), 0.0), 1.0)
        extrapolation = 1.0 - ramp
        result.append(value / factor * (1 - extrapolation) + value * extrapolation)
    return result


def llama3(dim, base, factor, low_factor, high_factor, original):
    low_wavelength, high_wavelength = original / low_factor, original / high_factor
    result = []
    for value in inverse_frequencies(dim, base):
        wavelength = 2 * math.pi / value
        if wavelength > low_wavelength:
            result.append(value / factor)
        elif wavelength < high_wavelength:
            result.append(value)
        else:
            smooth = (original / wavelength - low_factor) / (high_factor - low_factor)
            result.append((1 - smooth) * value / factor + smooth * value)
    return result


def attention_factor(factor):
    return 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0


CASES = [  # name, kind, dim, base, factor, original, low, high, values, attention factor
    ("plain_64", "NONE", 64, 10000.0, 1.0, 2048, 0, 0),
    ("plain_128_500k", "NONE", 128, 500000.0, 1.0, 8192, 0, 0),
    ("linear_8", "LINEAR", 128, 10000.0, 8.0, 2048, 0, 0),
    ("yarn_16_4k", "YARN", 128, 10000.0, 16.0, 4096, 0, 0),
    ("yarn_4_32k", "YARN", 128, 1000000.0, 4.0, 32768, 0, 0),
    ("yarn_32_small", "YARN", 64, 10000.0, 32.0, 256, 0, 0),
    ("llama3_32", "LLAMA3", 64, 500000.0, 32.0, 8192, 1.0, 4.0),
    ("llama3_8", "LLAMA3", 128, 500000.0, 8.0, 8192, 1.0, 4.0),
]

print("/* Written by tests/model/rope_fixture.py; do not edit. */")
print("static const struct rope_case rope_cases[] = {")
for name, kind, dim, base, factor, original, low, high in CASES:
    if kind == "NONE":
        values = inverse_frequencies(dim, base)
    elif kind == "LINEAR":
        values = [v / factor for v in inverse_frequencies(dim, base)]
    elif kind == "YARN":
        values = yarn(dim, base, factor, original)
    else:
        values = llama3(dim, base, factor, low, high, original)
    magnitude = attention_factor(factor) if kind == "YARN" else 1.0
    print(f'    {{"{name}", ROPE_SCALING_{kind}, {dim}, {base!r}, {factor!r}, {original}, {float(low)!r}, '
          f"{float(high)!r}, {magnitude!r},")
    print("     {")
    for i in range(0, len(values), 4):
        print("         " + ", ".join(f"{v!r}" for v in values[i:i + 4]) + ",")
    print("     }},")
print("};")
