/* kernels: every operation's table, filled for what this processor may use. */
#pragma once

#include "kernels/abstract/abstract.h"
#include "kernels/activation/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/codec/codec.h"
#include "kernels/convert/convert.h"
#include "kernels/group/group.h"
#include "kernels/hash/hash.h"
#include "kernels/level/level.h"
#include "kernels/mass/mass.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matvec/matvec.h"
#include "kernels/norm/norm.h"
#include "kernels/project/project.h"
#include "kernels/recurrence/recurrence.h"
#include "kernels/rope/rope.h"
#include "kernels/score/score.h"
#include "kernels/top_k/top_k.h"

struct kernels {
    struct abstract_kernels abstract;
    struct activation_kernels activation;
    struct attention_kernels attention;
    struct codec_kernels codec;
    struct convert_kernels convert;
    struct group_kernels group;
    struct hash_kernels hash;
    struct level_kernels level;
    struct mass_kernels mass;
    struct matmul_kernels matmul;
    struct matvec_kernels matvec;
    struct norm_kernels norm;
    struct project_kernels project;
    struct recurrence_kernels recurrence;
    struct rope_kernels rope;
    struct score_kernels score;
    struct top_k_kernels top_k;
};

void kernels_init(struct kernels *kernels, cpu_mask mask);
