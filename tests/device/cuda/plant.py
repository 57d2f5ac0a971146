#!/usr/bin/env python3
"""plant.py SOURCE OUT: bugs in the text of the kernel that multiplies experts by wgmma, for test_executor.c.

OUT/device/cuda/ gets copies of the kernel's headers, in which `planted(NAME)` asks for each bug whether it is the one
that a test wants, and planted_experts.h, which numbers the bugs.  A text that is not there once, since the kernel has
changed, ends the build with the bug's name."""
import pathlib
import sys

MATMUL, WGMMA = "matmul.h", "matmul_wgmma.h"
BUGS = [  # file, name, text, what it becomes; without that its first statement is left out
    (MATMUL, "EXPERT", "tile.expert * args.expert_rows", "(tile.expert - planted(EXPERT)) * args.expert_rows"),
    (MATMUL, "INPUT", "{pick / args.used,", "{planted(INPUT) ? pick : pick / args.used,"),
    (MATMUL, "UNMET", "block_barrier();\n    return true;"),
    (WGMMA, "OVERWRITE", "mbarrier_wait(stage.empty(), stage.turn ^ 1);\n        UNROLL"),
    (WGMMA, "COPY", "copy_async_wait<1>();"),
    (WGMMA, "LAST_COPY", "copy_async_wait<0>();"),
    (WGMMA, "UNFENCED", "async_fence();\n        warp_barrier();\n        if (lane_index() == 0) mbarrier_arrive(last_full);"),
    (WGMMA, "PHASE", "if (number == 0) turn ^= 1;", "if (number == 0 && !planted(PHASE)) turn ^= 1;"),
    (WGMMA, "UNAWAITED", "mbarrier_wait(stage->full(), stage->turn);"),
    (WGMMA, "UNORDERED", "wgmma_fence();"),
    (WGMMA, "UNCOMMITTED", "wgmma_commit();"),
    (WGMMA, "RELEASE", "wgmma_wait<1>();"),
    (WGMMA, "RESULTS", "wgmma_wait<0>();"),
    (WGMMA, "HALF", "<= MATMUL_ROWS / 2)", "<= MATMUL_ROWS / 2 + planted(HALF))"),
    (WGMMA, "LAST_ROW", "row >= place.row_end) continue;", "row + planted(LAST_ROW) >= place.row_end) continue;"),
    (WGMMA, "WARPGROUP", "output_part = warp_index() / 4 * 64;", "output_part = warp_index() / 4 * 64 * !planted(WARPGROUP);"),
    (WGMMA, "BIAS", "[place.weight_first + output", "[place.weight_first * !planted(BIAS) + output"),
    (WGMMA, "PICK", "from.pick * place", "(planted(PICK) ? from.input : from.pick) * place"),
]

source, out = pathlib.Path(sys.argv[1]) / "device/cuda", pathlib.Path(sys.argv[2]) / "device/cuda"
out.mkdir(parents=True, exist_ok=True)
for file in MATMUL, WGMMA:
    text = (source / file).read_text()
    for _, name, there, *becomes in (bug for bug in BUGS if bug[0] == file):
        if text.count(there) != 1:
            sys.exit(f"plant.py: {name}: {source / file}: found {text.count(there)} times, expected once: {there}")
        text = text.replace(there, becomes[0] if becomes else f"if (!planted({name})) {there}")
    (out / file).write_text(text)
names = "".join(f"    EXPERTS_{bug[1]},\n" for bug in BUGS)
(out / "planted_experts.h").write_text(f"enum planted_experts_bug {{\n    EXPERTS_RIGHT,\n{names}    EXPERTS_END\n}};\n")
