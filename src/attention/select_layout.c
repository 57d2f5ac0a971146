/* What methods share: layouts of key indexes, and what a calibration has. */
#include "attention/select_method.h"

enum status select_layout_none(struct key_index_layout *layout, const struct select_shape *shape,
                               const struct select_options *options, struct error *error) {
    (void)layout, (void)shape, (void)options, (void)error;
    return STATUS_OK;
}

static enum status check_page(const struct select_options *options, size_t page, struct error *error) {
    if (page == 8 || page == 16 || page == 32 || page == 64) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "select=%s: page=%zu, expected 8, 16, 32 or 64", options->method->name, page);
}

enum status select_layout_tokens(struct key_index_layout *layout, const struct select_options *options,
                                 struct error *error) {
    layout->unit_tokens = options->page > 1 ? options->page : 1;
    return options->page > 1 ? check_page(options, options->page, error) : STATUS_OK;
}

enum status select_layout_pages(struct key_index_layout *layout, const struct select_shape *shape,
                                const struct select_options *options, enum abstract_kind kind, struct error *error) {
    size_t page = options->page != 0 ? options->page : SELECT_PAGE;
    TRY(check_page(options, page, error));
    return select_layout_abstracts(layout, shape, options, page, kind, error);
}

enum status select_layout_abstracts(struct key_index_layout *layout, const struct select_shape *shape,
                                    const struct select_options *options, size_t page, enum abstract_kind kind,
                                    struct error *error) {
    const size_t take = options->take;
    if (take != 0 && (take < page || take > KV_CHUNK_TOKENS || (take & (take - 1)) != 0))
        return error_set(error, STATUS_USAGE, "select=%s: take=%zu, expected %zu to 64, a power of two",
                         options->method->name, take, page);
    layout->kind = KEY_INDEX_ABSTRACT;
    layout->abstract_kind = kind;
    layout->aggregate = select_aggregate(options, SCORE_MAX);
    layout->unit_tokens = take != 0 ? take : page;
    layout->bounds_apart = kind != ABSTRACT_MIN_MAX && options->mass_bound;
    layout->has_bounds = kind == ABSTRACT_MIN_MAX || layout->bounds_apart;
    abstract_layout_init(&layout->abstract, page, shape->k_dimension, layout->has_bounds,
                         kind == ABSTRACT_MEAN_DEVIATION);
    layout->bounds_offset = layout->abstract.offset[ABSTRACT_MIN_MAX];
    layout->bytes = layout->abstract.bytes;
    return STATUS_OK;
}

const uint16_t *select_calibration_find(const struct select_calibration *calibration, const char *kind,
                                        size_t layer_index, size_t *columns) {
    if (calibration == NULL || calibration->find == NULL) return NULL;
    return calibration->find(calibration->context, kind, layer_index, columns);
}
