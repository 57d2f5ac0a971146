/* guess_gate: whether a layer's guess of the next one's choice is worth its reads (InfiniGen and CLO section 4 guess
 * always; how well that works differs by model and layer: in the first layers the residual stream still turns).
 *
 * A guessed chunk that is used saves a wait, one that is not costs a request and a slot.  Both are averaged over a
 * layer's last guesses; where too few are used the gate closes, and opens for one try after a while, as queries may
 * have come to be more alike.  What is attended to never depends on it.  Thread: the owner's.
 */
#ifndef LOAM_ATTENTION_GUESS_GATE_H
#define LOAM_ATTENTION_GUESS_GATE_H

#include <stdbool.h>
#include <stddef.h>

struct guess_gate {   /* of one layer; zeroed: it has not guessed yet */
    float read, used; /* chunks a guess, averages */
    unsigned tries;   /* so many were added, up to those that the first averages take */
    unsigned pause;   /* steps until the next try */
};

/* To be asked once a step.  Whether to guess now. */
bool guess_gate_opens(struct guess_gate *gate);
/* Of a guess, when its layer has attended: chunks that were read for it, and how many of them were used. */
void guess_gate_add(struct guess_gate *gate, size_t read, size_t used);

#endif
