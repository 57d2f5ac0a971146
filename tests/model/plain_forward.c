/* The forward pass by its formulas, in double, one token after another: slow and easy to read. */
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/tiny_model.h"
#include "tensor/half.h"

static const struct span none;

struct plain {
    const struct model *model;
    size_t count;
    bool rounds_kv;          /* to halves */
    double *x, *h;           /* [count][hidden]: residual stream, normed */
    double *q, *out;         /* [count][heads * dimension] */
    double *k, *v;           /* [layer] of layer_size, [count][heads * dimension] */
    size_t layer_size;
};

/* What the cpu device has there; NULL: nothing. */
static const float *floats(struct span span) {
    return span_exists(span) ? (const float *)(uintptr_t)(span.buffer->address + span.offset) : NULL;
}

/* An element of a matrix of F32 or BF16. */
static double element(const struct matrix *w, size_t row, size_t column) {
    const uint8_t *data = (const uint8_t *)w->data + row * w->row_bytes;
    uint16_t half;
    float value;
    assert_true(w->type == TENSOR_F32 || w->type == TENSOR_BF16);
    memcpy(&half, data + column * sizeof half, sizeof half);
    if (w->type == TENSOR_BF16) return (double)bfloat_to_float(half);
    memcpy(&value, data + column * sizeof value, sizeof value);
    return (double)value;
}

static void multiply(const struct weight *weight, struct span biases, const double *x, double *y,
                     bool accumulate) {
    const struct matrix *w = &weight->matrix;
    const float *bias = floats(biases);
    for (size_t r = 0; r < w->rows; r++) {
        double sum = bias != NULL ? (double)bias[r] : 0;
        for (size_t c = 0; c < w->columns; c++) sum += element(w, r, c) * x[c];
        y[r] = accumulate ? y[r] + sum : sum;
    }
}

static void norm(const double *x, struct span weight, struct span bias, double epsilon, size_t count,
                 double *y) {
    const float *w = floats(weight), *b = floats(bias);
    double mean = 0, square = 0;
    for (size_t i = 0; i < count; i++) mean += x[i] / (double)count;
    if (b == NULL) mean = 0;
    for (size_t i = 0; i < count; i++) square += (x[i] - mean) * (x[i] - mean) / (double)count;
    double scale = 1 / sqrt(square + epsilon);
    for (size_t i = 0; i < count; i++)
        y[i] = (x[i] - mean) * scale * (double)w[i] + (b != NULL ? (double)b[i] : 0);
}

/* x += norm(the product), or the product itself; of a row. */
static void add_product(const struct plain *p, const struct weight *weight, struct span bias, const double *in,
                        struct span behind, double *x) {
    const size_t hidden = p->model->config.hidden_size;
    double *sum = calloc(hidden, sizeof *sum);
    multiply(weight, bias, in, sum, false);
    if (span_exists(behind)) norm(sum, behind, none, (double)p->model->config.norm_epsilon, hidden, sum);
    for (size_t i = 0; i < hidden; i++) x[i] += sum[i];
    free(sum);
}

/* The norm before a part of a layer, or its input as it is. */
static void norm_before(const struct plain *p, const double *x, struct span weight, struct span bias, double *h) {
    const struct model_config *config = &p->model->config;
    memcpy(h, x, config->hidden_size * sizeof *h);
    if (span_exists(weight)) norm(x, weight, bias, (double)config->norm_epsilon, config->hidden_size, h);
}

/* Of q or k, [heads][dimension]. */
static void norm_heads(const struct plain *p, struct span weight, size_t heads, size_t dimension, double *x) {
    const size_t size = p->model->config.norms_rows ? heads * dimension : dimension;
    for (size_t at = 0; at < heads * dimension && span_exists(weight); at += size)
        norm(x + at, weight, none, (double)p->model->config.norm_epsilon, size, x + at);
}

static void rotate(const struct model *model, size_t rope, size_t position, double *head) {
    const struct model_config *config = &model->config;
    size_t pairs = (rope == ROPE_SLIDING ? config->sliding_rope_dimension : config->rope_dimension) / 2;
    if (!config->has_rope || rope == ROPE_NONE) return;
    for (size_t j = 0; j < pairs; j++) {
        size_t a = config->rope_order == ROPE_SPLIT ? j : 2 * j;
        size_t b = config->rope_order == ROPE_SPLIT ? j + pairs : 2 * j + 1;
        double angle = (double)position * (double)floats(model->rope_frequency[rope])[j];
        const bool is_plain = rope == ROPE_SLIDING && config->sliding_is_unscaled;
        const double factor = is_plain ? 1 : (double)config->rope_attention_factor;
        double c = cos(angle) * factor, s = sin(angle) * factor, x = head[a], y = head[b];
        head[a] = x * c - y * s;
        head[b] = x * s + y * c;
    }
}

static void attend_head(const struct plain *p, size_t index, size_t t, size_t head) {
    const struct model_config *config = &p->model->config;
    const struct layer_config *layer = &config->layers[index];
    size_t dimension = layer->kv.k_dimension, kv = head / (config->head_count / layer->kv.kv_head_count);
    size_t q_size = config->head_count * dimension, kv_size = layer->kv.kv_head_count * dimension;
    size_t first = layer->attention == ATTENTION_SLIDING && t + 1 > layer->window ? t + 1 - layer->window : 0;
    double *out = p->out + t * q_size + head * dimension, sum = 0, maximum = -INFINITY;
    const double *k = p->k + layer->kv_layer * p->layer_size, *v = p->v + layer->kv_layer * p->layer_size;
    double *score = calloc(p->count, sizeof *score);
    for (size_t s = first; s <= t; s++) {
        for (size_t i = 0; i < dimension; i++)
            score[s] += p->q[t * q_size + head * dimension + i] * k[s * kv_size + kv * dimension + i];
        score[s] *= (double)layer->scale;
        const double cap = (double)config->score_softcap;
        if (cap != 0) score[s] = cap * tanh(score[s] / cap);
        maximum = fmax(maximum, score[s]);
    }
    const float *sinks = floats(p->model->layers[index].sinks);
    if (sinks != NULL) maximum = fmax(maximum, (double)sinks[head]);
    if (sinks != NULL) sum = exp((double)sinks[head] - maximum);
    memset(out, 0, dimension * sizeof *out);
    for (size_t s = first; s <= t; s++) sum += exp(score[s] - maximum);
    for (size_t s = first; s <= t; s++)
        for (size_t i = 0; i < dimension; i++)
            out[i] += exp(score[s] - maximum) / sum * v[s * kv_size + kv * dimension + i];
    free(score);
}

static double to_half(double x) { return (double)half_to_float(float_to_half((float)x)); }

static void attention(const struct plain *p, size_t index) {
    const struct model_config *config = &p->model->config;
    const struct layer_weights *w = &p->model->layers[index];
    const struct layer_config *layer = &config->layers[index];
    size_t hidden = config->hidden_size, dimension = layer->kv.k_dimension;
    const size_t kv_heads = layer->kv_layer == index ? layer->kv.kv_head_count : 0;
    size_t q_size = config->head_count * dimension, kv_size = kv_heads * dimension;
    double *gated = calloc(2 * q_size, sizeof *gated);
    for (size_t t = 0; t < p->count; t++) {
        double *h = p->h + t * hidden, *q = p->q + t * q_size,
               *k = p->k + index * p->layer_size + t * kv_size;
        norm_before(p, p->x + t * hidden, w->attention_norm, w->attention_norm_bias, h);
        multiply(&w->q, w->q_bias, h, config->has_gates ? gated : q, false);
        for (size_t i = 0; i < q_size && config->has_gates; i++)
            q[i] = gated[i / dimension * 2 * dimension + i % dimension];
        double *v = p->v + index * p->layer_size + t * kv_size;
        if (kv_heads > 0) {
            multiply(&w->k, w->k_bias, h, k, false);
            if (w->v.matrix.data != NULL) multiply(&w->v, w->v_bias, h, v, false);
            if (w->v.matrix.data == NULL) memcpy(v, k, kv_size * sizeof *v); /* gemma4 */
            norm_heads(p, w->v_norm, kv_heads, dimension, v);
        }
        norm_heads(p, w->q_norm, config->head_count, dimension, q);
        norm_heads(p, w->k_norm, kv_heads, dimension, k);
        for (size_t i = 0; i < config->head_count; i++) {
            rotate(p->model, layer->rope, t, q + i * dimension);
            if (config->temperature == 0) continue;
            const double contexts = floor((double)t / (double)config->rope_original_context);
            for (size_t j = 0; j < dimension; j++)
                q[i * dimension + j] *= 1 + (double)config->temperature * log(1 + contexts);
        }
        for (size_t i = 0; i < kv_heads; i++) rotate(p->model, layer->rope, t, k + i * dimension);
        for (size_t i = 0; i < kv_size && p->rounds_kv; i++) k[i] = to_half(k[i]), v[i] = to_half(v[i]);
        for (size_t i = 0; i < config->head_count; i++) attend_head(p, index, t, i);
        for (size_t i = 0; i < q_size && config->has_gates; i++)
            p->out[t * q_size + i] /= (1 + exp(-gated[(i / dimension * 2 + 1) * dimension + i % dimension]));
        add_product(p, &w->output, w->output_bias, p->out + t * q_size, w->attention_norm_behind, p->x + t * hidden);
    }
    free(gated);
}

/* in = [B, C, x]; out = C * (the taps times the last rows of B * x) */
static void convolve_gated(const struct plain *p, size_t index) {
    const struct model_config *config = &p->model->config;
    const struct layer_weights *w = &p->model->layers[index];
    const size_t hidden = config->hidden_size, channels = config->state.channels, taps = config->state.taps;
    const float *tap = floats(w->state.taps);
    double *in = calloc(3 * channels, sizeof *in), *u = calloc(p->count * channels, sizeof *u),
           *out = calloc(channels, sizeof *out);
    for (size_t t = 0; t < p->count; t++) {
        double *h = p->h + t * hidden;
        norm(p->x + t * hidden, w->attention_norm, none, (double)config->norm_epsilon, hidden, h);
        multiply(&w->state.in, none, h, in, false);
        for (size_t c = 0; c < channels; c++) {
            u[t * channels + c] = in[c] * in[2 * channels + c];
            out[c] = 0;
            for (size_t back = 0; back < taps && back <= t; back++)
                out[c] += (double)tap[c * taps + taps - 1 - back] * u[(t - back) * channels + c];
            out[c] *= in[channels + c];
        }
        multiply(&w->state.out, none, out, p->x + t * hidden, true);
    }
    free(in);
    free(u);
    free(out);
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* A row of a delta net's input through its taps and silu; in: [t][channels], of all rows so far. */
static void convolve_plainly(const struct state_config *state, const float *tap, const double *in, size_t t,
                             double *out) {
    for (size_t c = 0; c < state->channels; c++) {
        double sum = 0;
        for (size_t back = 0; back < state->taps && back <= t; back++)
            sum += (double)tap[c * state->taps + state->taps - 1 - back] * in[(t - back) * state->channels + c];
        out[c] = sum * sigmoid(sum);
    }
}

/* S = S exp(a softplus(alpha + bias)) + k (beta (v - S'k))', o = S'q of one head; S: [k][v] */
static void delta_head(const struct state_config *state, double decay, double beta, const double *q, const double *k,
                       const double *v, double *s, double *o) {
    const size_t rows = state->k_dimension, width = state->v_dimension;
    double qq = 1e-6, kk = 1e-6;
    for (size_t i = 0; i < rows; i++) qq += q[i] * q[i], kk += k[i] * k[i];
    for (size_t j = 0; j < width; j++) {
        double known = 0;
        for (size_t i = 0; i < rows; i++) known += (s[i * width + j] *= decay) * k[i] / sqrt(kk);
        o[j] = 0;
        for (size_t i = 0; i < rows; i++) {
            s[i * width + j] += k[i] / sqrt(kk) * beta * (v[j] - known);
            o[j] += s[i * width + j] * q[i] / sqrt(qq * (double)rows);
        }
    }
}

static void delta(const struct plain *p, size_t index) {
    const struct model_config *config = &p->model->config;
    const struct layer_weights *w = &p->model->layers[index];
    const struct state_config *state = &config->state;
    const size_t hidden = config->hidden_size, heads = state->value_heads, width = state->v_dimension,
                 keys = state->key_heads * state->k_dimension;
    double *in = calloc(p->count * state->channels, sizeof *in), *x = calloc(state->channels, sizeof *x),
           *s = calloc(heads * state->k_dimension * width, sizeof *s), *o = calloc(heads * width, sizeof *o),
           *z = calloc(heads * width, sizeof *z), *gates = calloc(2 * heads, sizeof *gates),
           *both = calloc(2 * heads, sizeof *both);
    for (size_t t = 0; t < p->count; t++) {
        double *h = p->h + t * hidden;
        norm(p->x + t * hidden, w->attention_norm, none, (double)config->norm_epsilon, hidden, h);
        multiply(&w->state.in, none, h, in + t * state->channels, false);
        multiply(&w->state.gate, none, h, z, false);
        const size_t group = heads / state->key_heads;
        if (state->is_grouped)
            multiply(&w->state.beta, none, h, both, false);
        else
            multiply(&w->state.alpha, none, h, gates, false), multiply(&w->state.beta, none, h, gates + heads, false);
        for (size_t i = 0; i < heads && state->is_grouped; i++) { /* beta, then alpha of a key head's */
            gates[i] = both[i / group * 2 * group + group + i % group];
            gates[heads + i] = both[i / group * 2 * group + i % group];
        }
        convolve_plainly(state, floats(w->state.taps), in, t, x);
        for (size_t i = 0; i < heads; i++) {
            const size_t key = (state->is_grouped ? i / group : i % state->key_heads) * state->k_dimension;
            const double alpha = gates[i] + (double)floats(w->state.bias)[i];
            const double decay = exp((double)floats(w->state.decay)[i] * log(1 + exp(alpha)));
            delta_head(state, decay, sigmoid(gates[heads + i]), x + key, x + keys + key, x + 2 * keys + i * width,
                       s + i * state->k_dimension * width, o + i * width);
            norm(o + i * width, w->state.norm, none, (double)config->norm_epsilon, width, o + i * width);
        }
        for (size_t i = 0; i < heads * width; i++) o[i] *= z[i] * sigmoid(z[i]);
        multiply(&w->state.out, none, o, p->x + t * hidden, true);
    }
    double *const buffers[] = {in, x, s, o, z, gates, both};
    for (size_t i = 0; i < 7; i++) free(buffers[i]);
}

/* The matrix of one expert. */
static struct weight expert_of(const struct weight *stack, size_t expert_count, size_t expert) {
    struct weight weight = *stack;
    weight.matrix.rows /= expert_count;
    weight.matrix.data =
        (const uint8_t *)stack->matrix.data + expert * weight.matrix.rows * stack->matrix.row_bytes;
    return weight;
}

/* A gated feed-forward: of all rows, or of an expert. */
struct gated {
    struct weight gate, up, down;
    struct span gate_bias, up_bias, down_bias;
    enum activation_kind activation;
};

static double activate(enum activation_kind kind, double gate, double up) {
    if (kind == ACTIVATION_SILU_MULTIPLY) return gate / (1 + exp(-gate)) * up;
    if (kind == ACTIVATION_GELU_MULTIPLY)
        return 0.5 * gate * (1 + tanh(sqrt(2 / acos(-1)) * (gate + 0.044715 * gate * gate * gate))) * up;
    gate = fmin(gate, 7);
    return gate / (1 + exp(-1.702 * gate)) * (fmax(-7, fmin(up, 7)) + 1);
}

/* x += factor * down(activated(gate(h), up(h))) */
static void add_gated(const struct gated *w, const double *h, double factor, double *x) {
    const size_t size = w->gate.matrix.rows, hidden = w->down.matrix.rows;
    double *gate = calloc(size, sizeof *gate), *up = calloc(size, sizeof *up),
           *down = calloc(hidden, sizeof *down);
    multiply(&w->gate, w->gate_bias, h, gate, false);
    multiply(&w->up, w->up_bias, h, up, false);
    for (size_t i = 0; i < size; i++) up[i] = activate(w->activation, gate[i], up[i]);
    multiply(&w->down, w->down_bias, up, down, false);
    for (size_t i = 0; i < hidden; i++) x[i] += factor * down[i];
    free(gate);
    free(up);
    free(down);
}

static struct gated expert_gated(const struct model_config *model, const struct layer_weights *w, size_t expert) {
    const struct experts_config *config = &model->experts;
    struct weight gate = expert_of(&w->gate, config->count, expert), up = expert_of(&w->up, config->count, expert);
    if (config->is_fused) {
        up = gate;
        gate.matrix.rows = up.matrix.rows = config->size;
        up.matrix.data = (const uint8_t *)gate.matrix.data + config->size * gate.matrix.row_bytes;
    }
    return (struct gated){.gate = gate,
                          .up = up,
                          .down = expert_of(&w->down, config->count, expert),
                          .gate_bias = span_floats(w->mixture.gate_bias, expert * config->size),
                          .up_bias = span_floats(w->up_bias, expert * config->size),
                          .down_bias = span_floats(w->down_bias, expert * model->hidden_size),
                          .activation = config->activation};
}

/* Experts of other than the best groups cannot be picked.  A group is worth its two best. */
static void drop_groups(const struct experts_config *config, double *choice) {
    const size_t size = config->count / config->group_count;
    for (size_t dropped = config->groups_used; dropped < config->group_count; dropped++) {
        size_t worst = 0;
        double least = INFINITY;
        for (size_t g = 0; g < config->group_count; g++) {
            double best = -INFINITY, next = -INFINITY;
            for (size_t e = g * size; e < (g + 1) * size; e++) {
                next = fmax(next, fmin(best, choice[e]));
                best = fmax(best, choice[e]);
            }
            if (best == -INFINITY || best + next >= least) continue;
            worst = g;
            least = best + next;
        }
        for (size_t e = worst * size; e < (worst + 1) * size; e++) choice[e] = -INFINITY;
    }
}

/* What each expert is worth to a row, and what it is chosen by. */
static void judge(const struct experts_config *config, const float *bias, const double *score, double *worth,
                  double *choice) {
    double sum = 0;
    for (size_t e = 0; e < config->count; e++) sum += exp(score[e]);
    for (size_t e = 0; e < config->count; e++) {
        worth[e] = config->router == ROUTER_SIGMOID ? 1 / (1 + exp(-score[e])) : exp(score[e]) / sum;
        choice[e] = worth[e] + (bias != NULL ? (double)bias[e] : 0);
    }
    if (config->group_count > 1) drop_groups(config, choice);
}

/* x += norm(norm(shared) + norm(experts)), of gemma4; mixed: what the experts gave. */
static void add_beside(const struct plain *p, const struct layer_weights *w, const double *x, const double *mixed,
                       double *y) {
    const struct model_config *model = &p->model->config;
    const struct shared_weights *shared = &w->mixture.shared;
    const size_t hidden = model->hidden_size;
    const double epsilon = (double)model->norm_epsilon;
    double *h = calloc(hidden, sizeof *h), *sum = calloc(hidden, sizeof *sum), *other = calloc(hidden, sizeof *other);
    norm(x, w->ffn_norm, none, epsilon, hidden, h);
    add_gated(&(struct gated){.gate = shared->gate, .up = shared->up, .down = shared->down,
                              .activation = model->activation}, h, 1, sum);
    norm(sum, w->mixture.shared_norm_behind, none, epsilon, hidden, sum);
    norm(mixed, w->mixture.norm_behind, none, epsilon, hidden, other);
    for (size_t i = 0; i < hidden; i++) sum[i] += other[i];
    norm(sum, w->ffn_norm_behind, none, epsilon, hidden, sum);
    for (size_t i = 0; i < hidden; i++) y[i] += sum[i];
    free(h);
    free(sum);
    free(other);
}

static void experts(const struct plain *p, size_t index) {
    const struct model_config *model = &p->model->config;
    const struct experts_config *config = &model->experts;
    const struct layer_weights *w = &p->model->layers[index];
    const size_t hidden = model->hidden_size;
    const double epsilon = (double)model->norm_epsilon;
    double score[64], worth[64], choice[64], *mixed = calloc(hidden, sizeof *mixed);
    const bool is_beside = config->shared == SHARED_EXPERT_BESIDE;
    for (size_t t = 0; t < p->count; t++) {
        double *x = p->x + t * hidden, *h = p->h + t * hidden, *into = is_beside ? mixed : x, sum = 0;
        size_t picks[64];
        memset(mixed, 0, hidden * sizeof *mixed);
        norm(x, is_beside ? w->mixture.router_norm : w->ffn_norm, w->ffn_norm_bias, epsilon, hidden, h);
        multiply(&w->mixture.router, w->mixture.router_bias, h, score, false);
        if (is_beside) norm(x, w->mixture.norm, none, epsilon, hidden, h);
        judge(config, floats(w->mixture.choice_bias), score, worth, choice);
        for (size_t j = 0; j < config->used; j++) {
            picks[j] = 0;
            for (size_t e = 1; e < config->count; e++)
                if (choice[e] > choice[picks[j]]) picks[j] = e;
            sum += worth[picks[j]];
            choice[picks[j]] = -INFINITY;
        }
        if (!config->normalises && config->router != ROUTER_SOFTMAX_OF_CHOSEN) sum = 1;
        for (size_t j = 0; j < config->used; j++) {
            const struct gated expert = expert_gated(model, w, picks[j]);
            const float *scales = w->down.scale != NULL ? w->down.scale : floats(w->mixture.scales);
            const double own = scales != NULL ? (double)scales[picks[j]] : 1;
            add_gated(&expert, h, worth[picks[j]] / sum * (double)config->scale * own, into);
        }
        if (is_beside) add_beside(p, w, x, mixed, x);
        const struct shared_weights *shared = &w->mixture.shared;
        double factor = 0;
        if (config->shared == SHARED_EXPERT_GATED) multiply(&shared->router, none, h, &factor, false);
        factor = config->shared == SHARED_EXPERT_GATED ? 1 / (1 + exp(-factor)) : 1;
        if (config->shared != SHARED_EXPERT_NONE && !is_beside)
            add_gated(&(struct gated){.gate = shared->gate, .up = shared->up, .down = shared->down}, h, factor, x);
    }
    free(mixed);
}

static void feed_forward(const struct plain *p, size_t index) {
    const struct model_config *config = &p->model->config;
    const struct layer_weights *w = &p->model->layers[index];
    if (model_layer_has_experts(config, index)) {
        experts(p, index);
        return;
    }
    const size_t size = config->layers[index].ffn_size;
    double *gate = calloc(size, sizeof *gate), *up = calloc(size, sizeof *up);
    for (size_t t = 0; t < p->count; t++) {
        double *x = p->x + t * config->hidden_size, *h = p->h + t * config->hidden_size;
        if (config->family != FAMILY_COHERE2) norm_before(p, x, w->ffn_norm, w->ffn_norm_bias, h); /* attention's */
        multiply(&w->up, w->up_bias, h, up, false);
        if (config->family != FAMILY_OPT) multiply(&w->gate, none, h, gate, false);
        for (size_t i = 0; i < size; i++)
            up[i] = config->family == FAMILY_OPT ? fmax(up[i], 0) : activate(config->activation, gate[i], up[i]);
        add_product(p, &w->down, w->down_bias, up, w->ffn_norm_behind, x);
    }
    free(gate);
    free(up);
}

/* What tokens give a layer, x += norm(output * (gelu(gate * x) * ...)), and the layer's scale; gemma4. */
static void end_layer(const struct plain *p, size_t index, const int32_t *tokens) {
    const struct model_config *config = &p->model->config;
    const struct layer_weights *w = &p->model->layers[index];
    const size_t hidden = config->hidden_size, size = config->layer_input_size;
    const double epsilon = (double)config->norm_epsilon;
    double *e = calloc(hidden, sizeof *e), *given = calloc(size + 1, sizeof *given),
           *gate = calloc(size + 1, sizeof *gate);
    for (size_t t = 0; t < p->count; t++) {
        double *x = p->x + t * hidden;
        for (size_t i = 0; i < hidden && size > 0; i++) /* the embedding times root(hidden), over that root */
            e[i] = element(&p->model->token_embedding.matrix, (size_t)tokens[t], i);
        if (size > 0) {
            multiply(&w->input.projection, none, e, given, false);
            norm(given, w->input.norm, none, epsilon, size, given); /* by weights that have the factor root(1/2) */
            for (size_t i = 0; i < size; i++)
                given[i] += sqrt((double)size / 2) *
                            element(&p->model->input_table.matrix, (size_t)tokens[t], index * size + i);
            multiply(&w->input.gate, none, x, gate, false);
            for (size_t i = 0; i < size; i++) gate[i] = activate(config->activation, gate[i], given[i]);
            add_product(p, &w->input.output, none, gate, w->input.norm_behind, x);
        }
        for (size_t i = 0; i < hidden && w->output_scale != 0; i++) x[i] *= (double)w->output_scale;
    }
    free(e);
    free(given);
    free(gate);
}

void plain_forward(const struct model *model, const int32_t *tokens, size_t count, bool rounds_kv, double *logits,
                   double *hidden) {
    const struct model_config *config = &model->config;
    size_t width = config->hidden_size, q_size = config->head_count * config->k_dimension;
    struct plain p = {.model = model, .count = count, .rounds_kv = rounds_kv};
    double **buffers[] = {&p.x, &p.h, &p.q, &p.k, &p.v, &p.out};
    p.layer_size = count * q_size;
    for (size_t i = 0; i < 6; i++)
        *buffers[i] = calloc(config->layer_count * count * (width + q_size), sizeof(double));
    for (size_t t = 0; t < count; t++)
        for (size_t i = 0; i < width; i++) {
            p.x[t * width + i] = element(&model->token_embedding.matrix, (size_t)tokens[t], i);
            if (config->embedding_scale != 0)
                p.x[t * width + i] *= config->output_scale != 0 ? (double)config->embedding_scale : sqrt((double)width);
            if (!config->has_rope)
                p.x[t * width + i] +=
                    element(&model->position_embedding.matrix, t + config->position_offset, i);
        }
    for (size_t l = 0; l < config->layer_count; l++) {
        const enum mixer mixer = config->layers[l].mixer;
        (mixer == MIXER_ATTENTION ? attention : mixer == MIXER_DELTA ? delta : convolve_gated)(&p, l);
        feed_forward(&p, l);
        end_layer(&p, l, tokens);
        if (hidden != NULL) memcpy(hidden + l * count * width, p.x, count * width * sizeof(double));
    }
    for (size_t t = 0; t < count; t++) {
        norm(p.x + t * width, model->output_norm, model->output_norm_bias, (double)config->norm_epsilon,
             width, p.h);
        double *own = logits + t * config->vocabulary_size;
        multiply(&model->output, none, p.h, own, false);
        const double cap = (double)config->logit_softcap;
        for (size_t i = 0; i < config->vocabulary_size && cap > 0; i++) own[i] = cap * tanh(own[i] / cap);
    }
    for (size_t i = 0; i < 6; i++) free(*buffers[i]);
}
