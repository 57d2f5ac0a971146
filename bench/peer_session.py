#!/usr/bin/env python3
"""Lengthens a session file of llama.cpp or ik_llama.cpp (--prompt-cache) to any number of tokens with made-up K and V rows.

    llama-cli -m MODEL -c 512 -n 1 -fa 1 -p "some words" --prompt-cache short.bin --prompt-cache-all
    bench/peer_session.py short.bin 32768 sessions/d32768.bin

A peer's decode at a depth is then timed without an hour of prefill, over generated rows as `loam bench
--fill-random` does it: bench/compare.py --cli and --sessions.  Reads version 9 (llama.cpp's llama-completion -no-cnv of
2026) and version 10 (ik_llama.cpp's llama-cli), K and V not transposed (-fa); anything else is refused.
"""
import random
import struct
import sys

ROWS_AT_ONCE = 4096  # the same rows over and over: their values do not matter, their bytes are read all the same


def number(data, kind, offset):
    return struct.unpack_from("<" + kind, data, offset)[0], offset + struct.calcsize("<" + kind)


def head_end(data, offset, version):
    """Where the count of cells is, behind what the two versions say of the model and the last output."""
    size, offset = number(data, "I", offset)  # the architecture's name
    offset += size
    if version == 9:
        streams, offset = number(data, "I", offset)
        if streams != 1:
            sys.exit(f"peer_session.py: {sys.argv[1]}: {streams} streams, expected 1")
        return offset
    size, offset = number(data, "I", offset)  # the random numbers' state
    offset += size
    size, offset = number(data, "I", offset)  # output ids
    offset += 4 * size
    for _ in range(2):  # logits, embeddings
        size, offset = number(data, "Q", offset)
        offset += 4 * size
    return offset


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    data, count, target = open(sys.argv[1], "rb").read(), int(sys.argv[2]), open(sys.argv[3], "wb")
    version, offset = number(data, "I", 4)
    stored, offset = number(data, "I", offset)
    if data[:4] != b"nsgg" or version not in (9, 10) or stored == 0:
        sys.exit(f"peer_session.py: {sys.argv[1]}: found {data[:4]!r} version {version}, expected b'nsgg' version 9 or 10")
    tokens, offset = data[offset:offset + 4 * stored], offset + 4 * stored
    state, offset = offset, head_end(data, offset, version)
    target.write(data[:8] + struct.pack("<I", count) + (tokens * (count // stored + 1))[:4 * count] + data[state:offset])
    if version == 9:
        count -= 1  # its row of the last token is computed again, for the logits
    cells, offset = number(data, "I", offset)
    offset += 12 * cells
    target.write(struct.pack("<I", count))
    target.write(b"".join(struct.pack("<iIi", position, 1, 0) for position in range(count)))
    transposed, offset = number(data, "I", offset)
    layers, offset = number(data, "I", offset)
    if transposed != 0:
        sys.exit(f"peer_session.py: {sys.argv[1]}: V is transposed; write it with -fa 1")
    target.write(struct.pack("<II", transposed, layers))
    generator = random.Random(1)
    for _ in range(2 * layers):
        kind, offset = number(data, "i", offset)
        row, offset = number(data, "Q", offset)
        offset += row * cells
        if kind != 1:
            sys.exit(f"peer_session.py: {sys.argv[1]}: rows of type {kind}, expected 1 (F16)")
        values = [generator.gauss(0, 1) for _ in range(row // 2)]
        rows = b"".join(struct.pack(f"<{row // 2}e", *(values[i:] + values[:i])) for i in range(0, row // 2, 4))
        rows = (rows * (ROWS_AT_ONCE * row // len(rows) + 1))[:ROWS_AT_ONCE * row]
        target.write(struct.pack("<iQ", kind, row))
        for first in range(0, count, ROWS_AT_ONCE):
            target.write(rows[:min(ROWS_AT_ONCE, count - first) * row])
    target.write(data[offset:])


main()
