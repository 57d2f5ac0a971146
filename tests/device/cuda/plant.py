#!/usr/bin/env python3
"""plant.py SOURCE OUT: bugs in the text of kernels, by wgmma and of decode attention, for test_executor.c and
test_races.c.

OUT/device/cuda/ gets copies of the kernels' headers, in which `planted(NAME)` asks for each bug whether it is the one
that a test wants, and planted_wgmma.h, which numbers the bugs, those of a kernel one after the other.  A text that is
not there once, since the kernel has changed, ends the build with the bug's name."""
import pathlib
import sys

MATMUL, WGMMA, PREFILL, DECODE = FILES = (
    "matmul.h", "matmul_wgmma.h", "attention_prefill_wgmma.h", "attention_decode.h")
BUGS = [  # file, name, text, what it becomes; without that its first statement is left out
    (MATMUL, "EXPERTS_EXPERT", "tile.expert * args.expert_rows",
     "(tile.expert - planted(EXPERTS_EXPERT)) * args.expert_rows"),
    (MATMUL, "EXPERTS_INPUT", "{pick / args.used,", "{planted(EXPERTS_INPUT) ? pick : pick / args.used,"),
    (MATMUL, "EXPERTS_UNMET", "block_barrier();\n    return true;"),
    (WGMMA, "EXPERTS_OVERWRITE", "mbarrier_wait(stage.empty(), stage.turn ^ 1);\n        UNROLL"),
    (WGMMA, "EXPERTS_COPY", "copy_async_wait<1>();"),
    (WGMMA, "EXPERTS_LAST_COPY", "copy_async_wait<0>();"),
    (WGMMA, "EXPERTS_UNFENCED",
     "async_fence();\n        warp_barrier();\n        if (lane_index() == 0) mbarrier_arrive(last_full);"),
    (WGMMA, "EXPERTS_LANES", "warp_barrier();\n        if (lane_index() == 0) mbarrier_arrive(last_full);"),
    (WGMMA, "EXPERTS_PHASE", "if (number == 0) turn ^= 1;", "if (number == 0 && !planted(EXPERTS_PHASE)) turn ^= 1;"),
    (WGMMA, "EXPERTS_UNAWAITED", "mbarrier_wait(stage->full(), stage->turn);"),
    (WGMMA, "EXPERTS_UNORDERED", "wgmma_fence();"),
    (WGMMA, "EXPERTS_UNCOMMITTED", "wgmma_commit();"),
    (WGMMA, "EXPERTS_RELEASE", "wgmma_wait<1>();"),
    (WGMMA, "EXPERTS_RESULTS", "wgmma_wait<0>();"),
    (WGMMA, "EXPERTS_HALF", "<= MATMUL_ROWS / 2)", "<= MATMUL_ROWS / 2 + planted(EXPERTS_HALF))"),
    (WGMMA, "EXPERTS_LAST_ROW", "row >= place.row_end) continue;",
     "row + planted(EXPERTS_LAST_ROW) >= place.row_end) continue;"),
    (WGMMA, "EXPERTS_WARPGROUP", "output_part = warp_index() / 4 * 64;",
     "output_part = warp_index() / 4 * 64 * !planted(EXPERTS_WARPGROUP);"),
    (WGMMA, "EXPERTS_BIAS", "[place.weight_first + output", "[place.weight_first * !planted(EXPERTS_BIAS) + output"),
    (WGMMA, "EXPERTS_PICK", "from.pick * place", "(planted(EXPERTS_PICK) ? from.input : from.pick) * place"),
    (WGMMA, "DENSE_UNPUBLISHED", "mbarriers_publish();"),
    (WGMMA, "DENSE_UNMET", "block_barrier();\n    if (warp_index() >="),
    (WGMMA, "DENSE_OVERWRITE", "mbarrier_wait(stage.empty(), stage.turn ^ 1); /* in"),
    (WGMMA, "DENSE_BYTES", "ROWS * 128);\n", "ROWS * (planted(DENSE_BYTES) ? 64 : 128));\n"),
    (WGMMA, "DENSE_UNFENCED",
     "async_fence();\n            warp_barrier();\n            if (lane_index() == 0) mbarrier_arrive(stage.full());"),
    (WGMMA, "DENSE_LANES", "warp_barrier();\n            if (lane_index() == 0) mbarrier_arrive(stage.full());"),
    (PREFILL, "PREFILL_UNPUBLISHED", "mbarriers_publish();"),
    (PREFILL, "PREFILL_UNMET", "block_barrier();\n    if (warp_index() >="),
    (PREFILL, "PREFILL_OVERWRITE", "tiles.empty_wait(tile);"),
    (PREFILL, "PREFILL_PHASE", "(tile / count() & 1) ^ 1)", "(tile / count() & 1) ^ !planted(PREFILL_PHASE))"),
    (PREFILL, "PREFILL_COPY", "copy_async_wait<1>();"),
    (PREFILL, "PREFILL_LAST_COPY", "copy_async_wait<0>();"),
    (PREFILL, "PREFILL_UNFENCED", "async_fence();\n    warp_barrier();"),
    (PREFILL, "PREFILL_LANES", "warp_barrier();\n    if (lane_index() == 0) mbarrier_arrive(barrier);"),
    (PREFILL, "PREFILL_EARLY_QUERIES", "mbarrier_wait(tiles.queries_full(), 0);"),
    (PREFILL, "PREFILL_FIRST_KEYS", "tiles.full_wait(0);"),
    (PREFILL, "PREFILL_KEYS_UNAWAITED", "tiles.full_wait(2 * i - 1);"),
    (PREFILL, "PREFILL_VALUES_UNAWAITED", "tiles.full_wait(2 * i);"),
    (PREFILL, "PREFILL_LAST_VALUES", "tiles.full_wait(2 * count - 1);"),
    (PREFILL, "PREFILL_KEYS_RELEASE", "wgmma_wait<1>();"),
    (PREFILL, "PREFILL_VALUES_RELEASE", "wgmma_wait<0>();\n        wgmma_results(sums.o);\n        if"),
    (PREFILL, "PREFILL_UNORDERED", "wgmma_fence();\n    UNROLL\n    for (uint32_t step = 0; step < 8"),
    (PREFILL, "PREFILL_PANEL", "16 * 128, PREFILL_PANEL_BYTES)",
     "16 * 128, PREFILL_PANEL_BYTES >> planted(PREFILL_PANEL))"),
    (PREFILL, "PREFILL_SWIZZLE", "(eighth % 8 ^ row % 8)", "(eighth % 8 ^ (planted(PREFILL_SWIZZLE) ? 0 : row % 8))"),
    (DECODE, "DECODE_TABLE", "block_barrier();\n}\n"),
    (DECODE, "DECODE_PARTS", "block_barrier();\n    const uint32_t head_count"),
    (DECODE, "DECODE_LAST_ROW", "r < tile_end;", "r < tile_end - planted(DECODE_LAST_ROW);"),
    (DECODE, "DECODE_RANGE", "range < item->range_end;", "range - planted(DECODE_RANGE) < item->range_end;"),
]

source, out = pathlib.Path(sys.argv[1]) / "device/cuda", pathlib.Path(sys.argv[2]) / "device/cuda"
out.mkdir(parents=True, exist_ok=True)
for file in FILES:
    text = (source / file).read_text()
    for _, name, there, *becomes in (bug for bug in BUGS if bug[0] == file):
        if text.count(there) != 1:
            sys.exit(f"plant.py: {name}: {source / file}: found {text.count(there)} times, expected once: {there}")
        text = text.replace(there, becomes[0] if becomes else f"if (!planted({name})) {there}")
    (out / file).write_text(text)
names = "    WGMMA_RIGHT,\n"
for kernel in "EXPERTS", "DENSE", "PREFILL", "DECODE":
    own = [name for _, name, *_ in BUGS if name.startswith(kernel)]
    names += f"    {kernel}_BEGIN,\n    {own[0]} = {kernel}_BEGIN,\n" + "".join(f"    {name},\n" for name in own[1:])
    names += f"    {kernel}_END,\n"
(out / "planted_wgmma.h").write_text(f"enum planted_wgmma_bug {{\n{names}}};\n")
