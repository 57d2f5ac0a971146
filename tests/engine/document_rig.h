/* document_rig: prompts of a tiny random model, each answered by an engine of its own, over a folder of saved
 * documents that tests damage.  An answer has the same bits whatever part of its prompt was saved.  The one exception:
 * where prefill and decode differ in their order of sums (AMX, decision 0026), the last token of a prompt that
 * was saved whole has other bits.  Blocks are cut so that nothing else differs. */
#pragma once

#include "engine/engine.h"
#include "platform/fault_plan.h"
#include "platform/scratch.h"

enum {
    RIG_BLOCK = 64,
    RIG_SEGMENT = 128,
    RIG_TOKENS = 320,
    RIG_STEPS = 2,
    RIG_WIDTH = 80,
    RIG_AMPLE_BYTES = 1 << 24
};

enum rig_prompt {
    RIG_BEFORE,  /* 192 tokens of their own */
    RIG_FIRST,   /* 256 */
    RIG_LONGER,  /* the same and 64 more */
    RIG_DEPARTS, /* 128 of the first one's, then 128 others: enough to be saved */
    RIG_PROMPTS,
};

enum rig_pages {
    RIG_ROWS,        /* in f16 */
    RIG_MIXED,       /* half of the first layer's in 4 bits and all of the others' */
    RIG_INDEX_APART, /* in f16, and the key index on disk; leaves of 16 tokens */
    RIG_INPUTS,      /* in f16, and the inputs of layers, from which all K and V are computed again */
    RIG_STATES,      /* in f16, of a model some of whose layers keep a state instead */
    RIG_WINDOWS,     /* in f16, of a model of whose layers every other one has a window */
};

struct document_rig {
    struct device *device;
    const char *family;
    struct model *model, *other; /* other: of other weights */
    int32_t tokens[RIG_PROMPTS][RIG_TOKENS];
    struct scratch scratch, before; /* before: a copy of the folder with RIG_BEFORE saved in it */
    struct plan options;          /* of engines without faults; with the least budget */
    float *expected[RIG_PROMPTS]; /* owned; [1 + RIG_STEPS][RIG_WIDTH]: of a fresh prompt, all in RAM */
    float *repeated
        [RIG_PROMPTS]; /* owned; the same where all but the last token was saved: equal, but for AMX */
};

void document_rig_open(struct document_rig *rig, const struct select_method *method, enum rig_pages pages);
void document_rig_close(struct document_rig *rig);
size_t rig_prompt_count(enum rig_prompt prompt); /* tokens */
/* How many of them are reused if all were saved: the last one's logits are needed.  The rows of a chunk in 4 bits are
 * gone, so it cannot be cut back by one row; nor can a state, which is there at whole chunks. */
size_t rig_reused_max(const struct document_rig *rig, enum rig_prompt prompt);
/* A folder with RIG_BEFORE saved in it and nothing else. */
void document_rig_reset(struct document_rig *rig);

struct rig_answer {
    enum status status, saved;      /* of the answer, and of the saving */
    struct error error;             /* of either */
    bool opened;                    /* the engine was made */
    char notice[512], warning[512]; /* of the sequence, and of the folder */
    size_t refusals; /* openings that turned out damaged while the prompt was read; then it was computed */
    uint64_t reused, read_pages;
    uint64_t rebuilt_chunks,
        rebuild_refusals;                   /* of RIG_INPUTS: from inputs; inputs that could not be used, */
    char refusal[256];                      /* and why */
    float logits[1 + RIG_STEPS][RIG_WIDTH]; /* of the prompt's last token and of the steps */
};

/* As loam run does it: prompt, steps, flush; again if a document turns out to be damaged.  faults NULL: none. */
void rig_ask(struct document_rig *rig, struct model *model, const struct plan *options,
             const struct engine_options *faults, enum rig_prompt prompt, struct rig_answer *answer);
/* Whether its bits are those of a fresh one. */
bool rig_is_right(const struct document_rig *rig, enum rig_prompt prompt, const struct rig_answer *answer);
/* Without faults: the right answer, and no rejection, of inputs neither.  Returns the reused tokens; *rebuilt_chunks:
 * if it is not NULL. */
uint64_t rig_ask_clean(struct document_rig *rig, enum rig_prompt prompt, const char *what,
                       uint64_t *rebuilt_chunks);

uint64_t rig_fuzz(void); /* LOAM_TEST_FUZZ: so many times as many cases; 0: not given */
