/* hash: tokens ranked by codes of their keys, of two kinds.
 *
 *   level  the coordinates of a rotated key less the mean of its chunk, rounded to bits / dimension bits each, and a
 *          factor, against the query as it is: an estimate of q . k (kernels/level).  The rotation is random,
 *          orthonormal, the same for all layers: no calibration.
 *   sign   signs of projections, against those of the query, times |k| (kernels/hash; Gong et al. 2025, HATA; what
 *          CLO selects by).  The projections are learned; without a calibration they are random hyperplanes,
 *          orthonormal in blocks of k_dimension; with more bits than dimensions W W^T = (bits / dimension) I then
 *          holds exactly, which is the corrected form of HATA's decorrelation target.
 *
 * Of as many bits levels lose half of what signs lose or less, learned or random (decisions 0029 and 0032). */
#include <math.h>

#include "attention/select_method.h"
#include "base/random.h"
#include "tensor/half.h"

static const uint64_t RANDOM_SEED = 0x6861746173656564; /* any; a file written with one seed is read with it */

enum { DIMENSION_MAX = 1024, BITS_DEFAULT = 128 };

/* Planes: the next number whose codes are whole words; of a dimension without one, the default. */
static size_t code_bits(const struct select_options *options, const struct select_shape *shape) {
    for (size_t planes = options->planes; planes != 0 && planes <= LEVEL_PLANES_MAX; planes++)
        if (level_fits(shape->k_dimension, planes)) return planes * shape->k_dimension;
    return options->bits != 0 ? options->bits : BITS_DEFAULT;
}

static bool fits_levels(const struct select_options *options, const struct select_shape *shape) {
    return code_bits(options, shape) % shape->k_dimension == 0 &&
           level_fits(shape->k_dimension, code_bits(options, shape) / shape->k_dimension);
}

static bool uses_levels(const struct select_options *options, const struct select_shape *shape) {
    switch (options->code) {
    case SELECT_CODE_SIGN: return false;
    case SELECT_CODE_LEVEL: return true;
    case SELECT_CODE_OWN: break;
    }
    return options->norms && fits_levels(options, shape);
}

static enum status check_options(const struct select_options *options, const struct select_shape *shape,
                                 struct error *error) {
    if (options->planes > LEVEL_PLANES_MAX)
        return error_set(error, STATUS_USAGE, "select=hash: planes=%zu, expected up to %d", options->planes,
                         LEVEL_PLANES_MAX);
    if (code_bits(options, shape) % 32 != 0 || code_bits(options, shape) > HASH_BITS_MAX)
        return error_set(error, STATUS_USAGE, "select=hash: bits=%zu, expected a multiple of 32 up to %d",
                         code_bits(options, shape), HASH_BITS_MAX);
    if (options->group == SELECT_GROUP_MAX)
        return error_set(error, STATUS_USAGE, "select=hash: group=max, expected sum or softmax");
    if (!options->norms && (options->group == SELECT_GROUP_SOFTMAX || options->code == SELECT_CODE_LEVEL))
        return error_set(error, STATUS_USAGE, "select=hash: group=softmax and code=level need norms=1");
    if (options->code == SELECT_CODE_LEVEL && !fits_levels(options, shape))
        return error_set(error, STATUS_USAGE,
                         "select=hash: bits=%zu, expected %zu, the dimension of a key, or up to %d times that, "
                         "with code=level",
                         code_bits(options, shape), shape->k_dimension, LEVEL_PLANES_MAX);
    return STATUS_OK;
}

static enum status layout(struct key_index_layout *layout, const struct select_shape *shape,
                          const struct select_options *options, struct error *error) {
    TRY(check_options(options, shape, error));
    const bool by_level = uses_levels(options, shape);
    layout->aggregate = select_aggregate(options, by_level ? SCORE_SOFTMAX : SCORE_SUM);
    if (by_level) {
        layout->kind = KEY_INDEX_LEVEL;
        const bool may_look = options->page >= KV_BLOCK_TOKENS && layout->aggregate == SCORE_SOFTMAX;
        level_layout_init(&layout->level, shape->k_dimension, code_bits(options, shape) / shape->k_dimension, may_look);
        layout->bytes = layout->level.bytes;
    } else {
        layout->kind = KEY_INDEX_HASH;
        hash_layout_init(&layout->hash, code_bits(options, shape));
        layout->bytes = layout->hash.bytes;
        layout->use_norms = options->norms;
    }
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
                    weights[(head * dimension + d) * bits + first + i] = float_to_half((float)basis[i * dimension + d]);
        }
    free(basis);
    return STATUS_OK;
}

/* The same for every layer of a shape. */
static enum status random_or_alike(uint16_t *weights, const uint16_t *alike, const struct select_shape *shape,
                                   size_t bits, struct error *error) {
    if (alike == NULL) return random_weights(weights, shape, bits, error);
    memcpy(weights, alike, shape->kv_head_count * shape->k_dimension * bits * sizeof *weights);
    return STATUS_OK;
}

static enum status weights(uint16_t *weights, size_t layer_index, const uint16_t *alike,
                           const struct select_shape *shape, const struct select_options *options,
                           const struct select_calibration *calibration, const char **fallback, struct error *error) {
    size_t bits = code_bits(options, shape), first_layer = options->dense_layers;
    if (uses_levels(options, shape)) /* rotations */
        return random_or_alike(weights, alike, shape, shape->k_dimension, error);
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
    return random_or_alike(weights, alike, shape, code_bits(options, shape), error);
}

const struct select_method select_hash = {.name = "hash",
                                          .summary = "tokens by codes of their keys (HATA)",
                                          .layout = layout,
                                          .weights = weights,
                                          .scatter = 0.5};
