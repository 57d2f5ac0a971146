/* selection_emulated: the AVX-512 sources of the selection kernels compiled on SIMDe, for machines without it. */
#pragma once

#include "kernels/abstract/abstract.h"
#include "kernels/attention/attention.h"
#include "kernels/codec/codec.h"
#include "kernels/group/group.h"
#include "kernels/hash/hash.h"
#include "kernels/level/level.h"
#include "kernels/mass/mass.h"
#include "kernels/project/project.h"
#include "kernels/score/score.h"
#include "kernels/top_k/top_k.h"

void emulated_abstract_avx512_install(struct abstract_kernels *kernels);
void emulated_codec_avx512_install(struct codec_kernels *kernels);
void emulated_gather_avx512_install(struct attention_kernels *kernels);
void emulated_gather_q4_avx512_install(struct attention_kernels *kernels);
void emulated_group_avx512_install(struct group_kernels *kernels);
void emulated_hash_avx512_install(struct hash_kernels *kernels);
void emulated_hash_avx512popcnt_install(struct hash_kernels *kernels);
void emulated_level_avx512_install(struct level_kernels *kernels);
void emulated_mass_avx512_install(struct mass_kernels *kernels);
void emulated_project_avx512_install(struct project_kernels *kernels);
void emulated_score_avx512_install(struct score_kernels *kernels);
void emulated_top_k_avx512_install(struct top_k_kernels *kernels);
