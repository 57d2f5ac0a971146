/* guess_gate: whether a layer's guess of the next one's choice is worth its reads (InfiniGen and CLO section 4 guess
 * always; how well that works differs by model and layer: in the first layers the residual stream still turns).
 *
 * A guessed chunk that is used saves a wait, one that is not costs a request and a slot.  Both are averaged over a
 * layer's last guesses; where too few are used the gate closes, and opens for one try after a while, as queries may
 * have come to be more alike.  A guess that is still being read when its layer comes makes that layer wait for all
 * of it, so a guess may read as much as the disk was seen to do in time: less after each that was late, more after
 * each that was not.  Where that is next to nothing the disk has no time to spare, and the gate closes as well.  What
 * is attended to never depends on it.  Thread: the owner's.
 */
#ifndef LOAM_ATTENTION_GUESS_GATE_H
#define LOAM_ATTENTION_GUESS_GATE_H

#include <stdbool.h>
#include <stddef.h>

struct guess_gate {
    float read, used; /* chunks a guess, averages */
    float room;       /* chunks that a guess may read */
    unsigned tries;   /* so many were added, up to those that the averages look back */
    unsigned pause;   /* steps until the next try */
};

/* What became of a guess: chunks that were read for it, how many of them were used, and whether reads were still under
 * way when its layer wanted to choose. */
struct guess_outcome {
    size_t read, used;
    bool late;
};

void guess_gate_init(struct guess_gate *gate);
/* To be asked once a step.  Whether to guess now. */
bool guess_gate_opens(struct guess_gate *gate);
size_t guess_gate_room(const struct guess_gate *gate);
void guess_gate_add(struct guess_gate *gate, const struct guess_outcome *outcome);

#endif
