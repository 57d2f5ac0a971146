/* hash_learn: learns hash weights of one KV head that beat random hyperplanes, or are at least about as good.
 *
 * HATA's recipe alone does not beat them at the bundled models' 128 bits of 64 dimensions.  Its relaxed code has the
 * slope 0.1, so it is nearly linear where x W is of the order of 1.  For linear codes
 *   sum_j (h_j(q) - h_j(k))^2 ~ |W^T (q - k)|^2 = bits / dimension * |q - k|^2
 * holds for every W with W W^T = bits / dimension I.  So the term that should learn does not depend on W, and the
 * decorrelation term keeps W there.
 *
 * Differs from [hata], therefore:
 *   scale   q and k are scaled to length sqrt(dimension), and the slope is 3: codes are well into saturation.
 *   shape   before that x is multiplied by C^p, C being half the second moment of the head's queries and half that of
 *           its keys around their mean, p in {0, .1, .15, .2, .25}: directions in which nothing varies get fewer
 *           bits.  It is folded into W afterwards.
 *   start   an orthonormal frame instead of N(0, 1), which descent only has to undo.
 *   choice  the last quarter of the training windows is kept aside; weights are what caught most attention mass there,
 *           of every p without training and of each epoch of training from the best p, and of the published recipe.
 *           Mass, not recall: a head that retrieves needs few of its top k, and by recall two calibrations of the
 *           bundled model that are equally good differed by six points of what it finds (docs/calibration.md).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lab/calibrate/hash_head.h"

struct hash_learn_options {
    size_t layer, kv_head;         /* whose weights */
    struct hash_training training; /* bits, epochs and steps are used; the rest is the published recipe's */
    /* Windows [0, train_windows) are for learning; the last quarter of them is for choosing the weights. */
    size_t train_windows;
    struct hash_keep keep;                        /* what weights are judged by */
    bool (*progress)(void *context, double done); /* 0 to 1, of this head; return true to stop */
    void *progress_context;
};

enum hash_origin { HASH_FRAME, HASH_SHAPED, HASH_TRAINED, HASH_PUBLISHED };

struct hash_learned {
    double random, published, learned; /* recall on the held-out windows */
    enum hash_origin origin;
    double power;
};

/* weights: out, [dimension][bits] halves.  STATUS_INTERRUPTED: progress returned true. */
enum status hash_learn(struct hash_head *head, const struct hash_learn_options *options, struct random *random,
                       uint16_t *weights, struct hash_learned *learned, struct error *error) STATUS_CHECKED;
