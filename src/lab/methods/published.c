/* published: LeoAM and CLO with their own options, beside what loam makes of them (docs/papers.md). */
#include "plan/presets.h"

/* Chunks by the upper bound of their keys, which from disk are whole chunks of 64 (abstracts on disk are not split,
 * 4.3: a tree of one level), the first two layers dense and in RAM, a tenth kept, 4.4's fraction in 4 bits, the next
 * layer read ahead. */
static const struct preset leoam = {
    .name = "leoam-published",
    .summary = "chunks by the bound of their keys, in a tree where they are in RAM (LeoAM)",
    .methods = {"tree", "none", "next-layer", "even", "f16", "none"},
    .keep = "10%",
    .settings = "rank=bound,group=max,leaf=8,dense=2,units_min=0",
    .disk_settings = "leaf=64,codec=dynamic",
};

/* 3.1 to 3.3, 4.2, 6.1: HATA's signs of 256 bits, summed over the group; eta and p; no age; every layer chooses, and
 * the first one stays.  epsilon is that of Llama-3-8B. */
static const struct preset clo = {
    .name = "clo-published",
    .summary = "the same by thresholds and labels of the paper",
    .methods = {"hash", "similarity", "next-layer", "persistent", "f16", "none"},
    .keep = "10%",
    .settings = "code=sign,bits=256,group=sum,dense=0,units_min=0,reused=0,eta=0.8,power=3,epsilon=0.1,age=0,"
                "similarity=harmonic,labels=speculated",
};

__attribute__((constructor)) static void add(void) {
    preset_add(&leoam);
    preset_add(&clo);
}
