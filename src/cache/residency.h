/* residency: chunks that stay in RAM because their KV head will attend to them again (lists that are kept from step to
 * step, attention/reuse.h).
 *
 *   1  A held chunk has one pin more, until its head holds others, its sequence is cut or goes, or somebody needs a
 *      slot that nobody else can give: then nothing is held any more.
 *   2  Of the slots of each kind beyond those that a step needs at least, and those of the layers that stay, at most
 *      half are held.  Heads hold in the order in which they come; what is over is as if it had not been asked for.
 *   3  Only what is on disk is held, so that holding never keeps a chunk from being written.
 *
 * Thread: the engine's. */
#pragma once

#include "cache/kv_tier_internal.h"

/* For new slots, of which nothing is held. */
void residency_divide(struct kv_tier *tier);
void residency_hold(struct kv_tier *tier, struct slot *slot);
/* What a head holds, what all of a sequence do, and everything; whether there was something. */
void residency_release(struct kv_sequence *sequence, size_t lane);
void residency_release_sequence(struct kv_sequence *sequence);
bool residency_release_all(struct kv_tier *tier);
