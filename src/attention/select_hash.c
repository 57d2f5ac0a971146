/* hash: tokens ranked by the Hamming distance of learned sign codes, times |k| (Gong et al. 2025, HATA; what CLO
 * selects by).  Without a calibration: random hyperplanes from a fixed seed, orthonormal in blocks of k_dimension,
 * the same for all layers; with more bits than dimensions W W^T = (bits / dimension) I then holds exactly,
 * which is the corrected form of HATA's decorrelation target. */
#include <math.h>

#include "attention/select_internal.h"
#include "base/random.h"
#include "tensor/half.h"

static const uint64_t RANDOM_SEED =
    0x6861746173656564; /* any; a file written with one seed is read with it */

enum { DIMENSION_MAX = 1024 };

static enum status layout(struct key_index_layout *layout, const struct select_shape *shape,
                          const struct select_options *options, struct error *error) {
    (void)shape;
    if (options->bits == 0 || options->bits % 32 != 0 || options->bits > HASH_BITS_MAX)
        return error_set(error, STATUS_USAGE, "select=hash: bits=%zu, expected a multiple of 32 up to %d",
                         options->bits, HASH_BITS_MAX);
    layout->kind = KEY_INDEX_HASH;
    hash_layout_init(&layout->hash, options->bits);
    layout->bytes = layout->hash.bytes;
    layout->use_norms = options->norms;
    return select_layout_tokens(layout, options, error);
}

/* basis[count][dimension]: orthonormal rows by Gram-Schmidt, twice for the rounding.  count <= dimension. */
static void random_basis(struct random *random, double *basis, size_t count, size_t dimension) {
    for (size_t i = 0; i < count; i++) {
        double *row = basis + i * dimension;
        for (size_t d = 0; d < dimension; d++) row[d] = random_normal(random);
        for (size_t pass = 0; pass < 2; pass++) {
            for (size_t j = 0; j < i; j++) {
                double dot = 0;
                for (size_t d = 0; d < dimension; d++) dot += row[d] * basis[j * dimension + d];
                for (size_t d = 0; d < dimension; d++) row[d] -= dot * basis[j * dimension + d];
            }
            double square = 0;
            for (size_t d = 0; d < dimension; d++) square += row[d] * row[d];
            for (size_t d = 0; d < dimension; d++) row[d] /= sqrt(square);
        }
    }
}

static enum status random_weights(uint16_t *weights, const struct select_shape *shape, size_t bits,
                                  struct error *error) {
    size_t dimension = shape->k_dimension;
    ASSERT(dimension <= DIMENSION_MAX);
    double *basis = calloc(dimension * dimension, sizeof *basis);
    if (basis == NULL) return error_set(error, STATUS_MEMORY, "select=hash: out of memory");
    struct random random;
    random_init(&random, RANDOM_SEED);
    for (size_t head = 0; head < shape->kv_head_count; head++)
        for (size_t first = 0; first < bits; first += dimension) {
            size_t count = min_size(dimension, bits - first);
            random_basis(&random, basis, count, dimension);
            for (size_t d = 0; d < dimension; d++)
                for (size_t i = 0; i < count; i++)
                    weights[(head * dimension + d) * bits + first + i] =
                        float_to_half((float)basis[i * dimension + d]);
        }
    free(basis);
    return STATUS_OK;
}

static enum status weights(uint16_t *weights, size_t layer_index, const struct select_shape *shape,
                           const struct select_options *options, const struct select_calibration *calibration,
                           const char **fallback, struct error *error) {
    size_t bits = options->bits, first_layer = options->dense_layers;
    size_t layer_size = shape->kv_head_count * shape->k_dimension * bits;
    bool has_codes = select_calibration_find(calibration, "hash", first_layer, &bits) != NULL;
    const uint16_t *learned = select_calibration_find(calibration, "hash", layer_index, &bits);
    if (learned != NULL) {
        memcpy(weights, learned, layer_size * sizeof *weights);
        return STATUS_OK;
    }
    if (has_codes)
        return error_set(error, STATUS_MODEL, "%s: blk.%zu.hash_%zu: found nothing, expected a tensor",
                         calibration->path, layer_index, bits);
    *fallback = "select=hash: no calibration of this model was found; its codes are of random hyperplanes";
    if (layer_index == first_layer) return random_weights(weights, shape, options->bits, error);
    memcpy(weights, weights - layer_size, layer_size * sizeof *weights); /* the same for every layer */
    return STATUS_OK;
}

const struct select_method select_hash = {
    .name = "hash", .summary = "tokens by hash codes (HATA)", .layout = layout, .weights = weights};
