/* A layer of a decode step in seven nodes, each launched as a programmatic dependent of the one before, which
 * runs as late as it may: the bits of the same layer operation by operation, one launch after the other. */
#include "kv_rig.h"

#include "device/device.h"

enum { COLUMNS = 256, HEADS = 4, KV_HEADS = 2, GROUP = 2, DIMENSION = 64, FF = 512, POSITION = 70 };
enum { Q = HEADS * DIMENSION, KV = KV_HEADS * DIMENSION };

struct layer {
    struct rig_matrix q, k, v, o, gate, up, down;
    float norm[COLUMNS], ff_norm[COLUMNS], q_norm[DIMENSION], k_norm[DIMENSION], frequency[DIMENSION / 2];
    struct kv_rig kv;
    struct step_row row;
    struct step_head head;
};

/* What a step writes. */
struct buffers {
    _Alignas(64) float x[COLUMNS], turns[DIMENSION], q[Q], k[KV], v[KV], y[Q], gate[FF], up[FF];
    _Alignas(64) uint8_t input[1024], attended[1024], gated[1024];
    _Alignas(64) float partials[HEADS * ATTENTION_RANGES_MAX * (4 + DIMENSION)];
};

struct node {
    const char *name;
    uint32_t grid[3], threads;
    size_t shared;
    const void *args;
};

static struct node nodes[20];
static size_t node_count;
static uint64_t seed;

static void node_run(const struct node *node) {
    launch(node->name, node->grid[0], node->grid[1], node->grid[2], node->threads, node->shared, node->args,
           seed++);
}

static void nodes_run_late(void *last) {
    const struct node *node = last;
    if (node > nodes) executor_precede(nodes_run_late, nodes + (node - nodes - 1));
    node_run(node);
}

static void node_add(const char *name, uint32_t x, uint32_t y, uint32_t z, uint32_t threads, size_t shared,
                     const void *args) {
    nodes[node_count++] = (struct node){name, {x, y, z}, threads, shared, args};
}

static void layer_init(struct layer *layer, struct random *random) {
    rig_matrix_init(&layer->q, random, TENSOR_Q4_0, WEIGHT_RANDOM, Q, COLUMNS);
    rig_matrix_init(&layer->k, random, TENSOR_Q4_0, WEIGHT_RANDOM, KV, COLUMNS);
    rig_matrix_init(&layer->v, random, TENSOR_Q4_0, WEIGHT_RANDOM, KV, COLUMNS);
    rig_matrix_init(&layer->o, random, TENSOR_Q5_1, WEIGHT_RANDOM, COLUMNS, Q);
    rig_matrix_init(&layer->gate, random, TENSOR_Q4_K, WEIGHT_RANDOM, FF, COLUMNS);
    rig_matrix_init(&layer->up, random, TENSOR_Q4_K, WEIGHT_RANDOM, FF, COLUMNS);
    rig_matrix_init(&layer->down, random, TENSOR_Q6_K, WEIGHT_RANDOM, COLUMNS, FF);
    fill_normal(random, layer->norm, COLUMNS, 1.0);
    fill_normal(random, layer->ff_norm, COLUMNS, 1.0);
    fill_normal(random, layer->q_norm, DIMENSION, 1.0);
    fill_normal(random, layer->k_norm, DIMENSION, 1.0);
    for (size_t j = 0; j < DIMENSION / 2; j++)
        layer->frequency[j] = (float)pow(10000.0, -2.0 * (double)j / DIMENSION);
    kv_rig_init(&layer->kv, random, KV_F16, KV_Q8, DIMENSION, DIMENSION, KV_HEADS,
                (const uint64_t[]){POSITION + 1}, 1);
    layer->row = (struct step_row){POSITION, 0, 0};
    layer->head = (struct step_head){1, 1};
}

static struct matvec_part part(const struct rig_matrix *w, float *y) {
    const uint32_t rows = (uint32_t)w->matrix.rows;
    return (struct matvec_part){w->planes, 0, address_of(y), rows, rows};
}

static struct cuda_matvec_args matvec_args(const void *input, uint32_t columns, bool accumulate) {
    return (struct cuda_matvec_args){
        .input = address_of(input), .columns = columns, .input_count = 1, .accumulate = accumulate};
}

static void angles_add(struct layer *layer, struct buffers *b) {
    static struct cuda_rope_angles_args args;
    args = (struct cuda_rope_angles_args){address_of(&layer->head),
                                          address_of(&layer->row),
                                          address_of(layer->frequency),
                                          address_of(b->turns),
                                          1,
                                          DIMENSION / 2,
                                          1.0f};
    node_add("rope_angles", 1, 1, 1, 128, 0, &args);
}

static void attention_add(struct layer *layer, struct buffers *b, float *y, void *input) {
    static struct cuda_attention_args args;
    static struct cuda_merge_args merge;
    args = (struct cuda_attention_args){.step = address_of(&layer->head),
                                        .rows = address_of(&layer->row),
                                        .items = address_of(layer->kv.items),
                                        .pools = address_of(&layer->kv.pools),
                                        .q = address_of(b->q),
                                        .partials = address_of(b->partials),
                                        .layer_pages = kv_rig_layer_pages(&layer->kv),
                                        .shape = layer->kv.shape,
                                        .row_count = 1,
                                        .q_stride = Q,
                                        .kv_head_count = KV_HEADS,
                                        .group = GROUP,
                                        .partial_stride = attention_partial_stride(DIMENSION),
                                        .scale = 0.125f};
    node_add("attention_decode_8_4_any", ATTENTION_RANGES_MAX, KV_HEADS, 1, 128,
             attention_decode_shared(8, 4), &args);
    merge = (struct cuda_merge_args){.step = args.step,
                                     .rows = args.rows,
                                     .partials = args.partials,
                                     .y = address_of(y),
                                     .input = address_of(input),
                                     .row_count = 1,
                                     .y_stride = Q,
                                     .head_count = HEADS,
                                     .v_dimension = DIMENSION,
                                     .partial_stride = args.partial_stride};
    node_add("attention_merge", HEADS, 1, 1, 512, sizeof(struct merge_shared), &merge);
}

static void output_add(struct layer *layer, struct buffers *b, const void *input) {
    static struct cuda_matvec_args args;
    args = matvec_args(input, Q, true);
    args.part[0] = part(&layer->o, b->x);
    node_add("matvec_q5_1_1", 3, 1, 1, 256, 0, &args);
}

static void down_add(struct layer *layer, struct buffers *b, const void *input) {
    static struct cuda_matvec_args args;
    args = matvec_args(input, FF, true);
    args.part[0] = part(&layer->down, b->x);
    node_add("matvec_q6_k_1", 3, 1, 1, 256, 0, &args);
}

static void nodes_fused(struct layer *layer, struct buffers *b) {
    static struct cuda_decode_matvec_args qkv, gate;
    static struct cuda_rope_append_args rope;
    node_count = 0;
    angles_add(layer, b); /* of the step, not of a layer */
    qkv = (struct cuda_decode_matvec_args){
        .matvec = matvec_args(b->x, COLUMNS, false), .norm_w = address_of(layer->norm), .epsilon = 1e-5f};
    qkv.matvec.part[0] = part(&layer->q, b->q);
    qkv.matvec.part[1] = part(&layer->k, b->k);
    qkv.matvec.part[2] = part(&layer->v, b->v);
    node_add("decode_norm_q4_0", 5, 1, 1, 256, decode_matvec_shared(COLUMNS), &qkv);
    rope = (struct cuda_rope_append_args){.step = address_of(&layer->head),
                                          .rows = address_of(&layer->row),
                                          .items = address_of(layer->kv.items),
                                          .pools = address_of(&layer->kv.pools),
                                          .q = address_of(b->q),
                                          .k = address_of(b->k),
                                          .v = address_of(b->v),
                                          .cosine_sine = address_of(b->turns),
                                          .q_norm = address_of(layer->q_norm),
                                          .k_norm = address_of(layer->k_norm),
                                          .layer_pages = kv_rig_layer_pages(&layer->kv),
                                          .shape = layer->kv.shape,
                                          .row_count = 1,
                                          .q_stride = Q,
                                          .k_stride = KV,
                                          .v_stride = KV,
                                          .head_count = HEADS,
                                          .pair_count = DIMENSION / 2,
                                          .split = 1,
                                          .epsilon = 1e-6f};
    node_add("rope_append", 1, HEADS + KV_HEADS, 1, 128, sizeof(struct rope_append_shared), &rope);
    attention_add(layer, b, NULL, b->attended);
    output_add(layer, b, b->attended);
    gate = (struct cuda_decode_matvec_args){.matvec = matvec_args(b->x, COLUMNS, false),
                                            .norm_w = address_of(layer->ff_norm),
                                            .input_out = address_of(b->gated),
                                            .epsilon = 1e-5f};
    gate.matvec.part[0] = part(&layer->gate, NULL);
    gate.matvec.part[1] = part(&layer->up, NULL);
    node_add("decode_gate_q4_k", 7, 1, 1, 256, decode_matvec_shared(COLUMNS), &gate);
    down_add(layer, b, b->gated);
}

static void quantize_add(struct cuda_quantize_args *args, const float *x, const float *w, uint32_t columns,
                         void *y) {
    *args = (struct cuda_quantize_args){.x = address_of(x),
                                        .w = address_of(w),
                                        .y = address_of(y),
                                        .row_count = 1,
                                        .x_stride = columns,
                                        .columns = columns,
                                        .norm = w != NULL ? QUANTIZE_RMS : QUANTIZE_PLAIN,
                                        .epsilon = 1e-5f};
    node_add("quantize_rows", 1, 1, 1, 256, sizeof(struct norm_shared), args);
}

static void heads_add(struct cuda_norm_args *norm, struct cuda_rope_args *rope, struct buffers *b, float *x,
                      uint32_t heads, const float *w) {
    *norm = (struct cuda_norm_args){.x = address_of(x),
                                    .w = address_of(w),
                                    .y = address_of(x),
                                    .row_count = 1,
                                    .x_stride = heads * DIMENSION,
                                    .y_stride = heads * DIMENSION,
                                    .segment_count = heads,
                                    .segment_size = DIMENSION,
                                    .epsilon = 1e-6f};
    node_add("norm_heads", 1, 1, 1, 256, 0, norm);
    *rope = (struct cuda_rope_args){.x = address_of(x),
                                    .cosine_sine = address_of(b->turns),
                                    .row_count = 1,
                                    .x_stride = heads * DIMENSION,
                                    .head_count = heads,
                                    .head_stride = DIMENSION,
                                    .pair_count = DIMENSION / 2,
                                    .split = 1};
    node_add("rope", 1, 1, 1, 256, 0, rope);
}

static void nodes_apart(struct layer *layer, struct buffers *b) {
    static struct cuda_quantize_args quantize[4];
    static struct cuda_matvec_args qkv, gate;
    static struct cuda_norm_args norm[2];
    static struct cuda_rope_args rope[2];
    static struct cuda_append_args append;
    static struct cuda_activation_args activation;
    node_count = 0;
    angles_add(layer, b);
    quantize_add(&quantize[0], b->x, layer->norm, COLUMNS, b->input);
    qkv = matvec_args(b->input, COLUMNS, false);
    qkv.part[0] = part(&layer->q, b->q);
    qkv.part[1] = part(&layer->k, b->k);
    qkv.part[2] = part(&layer->v, b->v);
    node_add("matvec_q4_0_1", 2, 1, 1, 256, 0, &qkv);
    heads_add(&norm[0], &rope[0], b, b->q, HEADS, layer->q_norm);
    heads_add(&norm[1], &rope[1], b, b->k, KV_HEADS, layer->k_norm);
    append = (struct cuda_append_args){.rows = address_of(&layer->row),
                                       .items = address_of(layer->kv.items),
                                       .pools = address_of(&layer->kv.pools),
                                       .k = address_of(b->k),
                                       .v = address_of(b->v),
                                       .layer_pages = kv_rig_layer_pages(&layer->kv),
                                       .shape = layer->kv.shape,
                                       .row_count = 1,
                                       .k_stride = KV,
                                       .v_stride = KV};
    node_add("append", 1, KV_HEADS, 1, 128, 0, &append);
    attention_add(layer, b, b->y, NULL);
    quantize_add(&quantize[1], b->y, NULL, Q, b->attended);
    output_add(layer, b, b->attended);
    quantize_add(&quantize[2], b->x, layer->ff_norm, COLUMNS, b->input);
    gate = matvec_args(b->input, COLUMNS, false);
    gate.part[0] = part(&layer->gate, b->gate);
    gate.part[1] = part(&layer->up, b->up);
    node_add("matvec_q4_k_1", 4, 1, 1, 256, 0, &gate);
    activation = (struct cuda_activation_args){.gate = address_of(b->gate),
                                               .up = address_of(b->up),
                                               .y = address_of(b->gate),
                                               .row_count = 1,
                                               .stride = FF,
                                               .count = FF,
                                               .kind = ACTIVATION_SILU_MULTIPLY};
    node_add("activation", 1, 1, 1, 256, 0, &activation);
    quantize_add(&quantize[3], b->gate, NULL, FF, b->gated);
    down_add(layer, b, b->gated);
}

static void layer_matches(void **state) {
    (void)state;
    static struct layer layer;
    static struct buffers apart, fused;
    struct random random;
    random_init(&random, test_seed(601));
    layer_init(&layer, &random);
    for (int round = 0; round < 4; round++) {
        memset(&apart, 0xff, sizeof apart), memset(&fused, 0xff, sizeof fused);
        fill_normal(&random, apart.x, COLUMNS, 1.0);
        memcpy(fused.x, apart.x, sizeof apart.x);
        kv_rig_fill(&layer.kv);
        nodes_apart(&layer, &apart);
        for (size_t i = 0; i < node_count; i++) node_run(&nodes[i]);
        kv_rig_fill(&layer.kv);
        nodes_fused(&layer, &fused);
        assert_int_equal(node_count, 1 + 7);
        nodes_run_late(&nodes[node_count - 1]);
        for (size_t i = 0; i < COLUMNS; i++) assert_true(isfinite(apart.x[i]));
        assert_memory_equal(fused.q, apart.q, sizeof apart.q);
        assert_memory_equal(fused.attended, apart.attended, Q / 32 * 40);
        assert_memory_equal(fused.gated, apart.gated, FF / 32 * 40);
        assert_memory_equal(fused.x, apart.x, sizeof apart.x);
    }
    struct rig_matrix *weights[] = {&layer.q,    &layer.k,  &layer.v,   &layer.o,
                                    &layer.gate, &layer.up, &layer.down};
    for (size_t i = 0; i < 7; i++) rig_matrix_deinit(weights[i]);
    kv_rig_deinit(&layer.kv);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(layer_matches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
