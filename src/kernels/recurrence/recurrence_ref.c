#include <math.h>
#include <string.h>

#include "kernels/recurrence/recurrence.h"

/* The rows of u that the next row needs, and its own behind them. */
typedef float window[CONVOLVE_TAPS_MAX][CONVOLVE_CHANNELS];

static void convolve_row(const struct convolve_args *args, size_t row, window u) {
    const size_t last = args->taps - 1, at = row * args->x_stride;
    for (size_t c = 0; c < args->channel_count; c++)
        u[last][c] = args->in_gate != NULL ? args->x[at + c] * args->in_gate[at + c] : args->x[at + c];
    for (size_t c = 0; c < args->channel_count; c++) {
        double sum = 0;
        for (size_t j = 0; j <= last; j++) sum += (double)args->w[c * args->taps + j] * (double)u[j][c];
        if (args->silu) sum /= 1 + exp(-sum);
        if (args->out_gate != NULL) sum *= (double)args->out_gate[at + c];
        args->y[row * args->y_stride + c] = (float)sum;
    }
    memmove(u[0], u[1], last * sizeof u[0]);
}

static void convolve(const struct convolve_args *args) {
    window u = {{0}};
    const size_t bytes = args->channel_count * sizeof(float);
    for (size_t j = 0; j + 1 < args->taps && args->from != NULL; j++)
        memcpy(u[j], args->from + j * args->state_stride, bytes);
    for (size_t row = 0; row < args->row_count; row++) convolve_row(args, row, u);
    for (size_t j = 0; j + 1 < args->taps; j++) memcpy(args->to + j * args->state_stride, u[j], bytes);
}

/* x of unit length, but for lengths near 0 (1e-6, as Hugging Face's l2norm), times scale. */
static void unit(const float *x, size_t count, double scale, double *y) {
    double square = 0;
    for (size_t i = 0; i < count; i++) square += (double)x[i] * (double)x[i];
    scale /= sqrt(square + 1e-6);
    for (size_t i = 0; i < count; i++) y[i] = (double)x[i] * scale;
}

static double softplus(double x) { return x > 20 ? x : log1p(exp(x)); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void delta_row(const struct delta_args *args, size_t row) {
    const size_t width = args->v_dimension;
    double q[DELTA_DIMENSION_MAX], k[DELTA_DIMENSION_MAX], v[DELTA_DIMENSION_MAX], o[DELTA_DIMENSION_MAX];
    const double alpha = (double)args->alpha[row * args->gate_stride],
                 beta = sigmoid((double)args->beta[row * args->gate_stride]),
                 decay = exp((double)args->decay * softplus(alpha + (double)args->bias));
    double square = 0;
    unit(args->q + row * args->stride, args->k_dimension, 1 / sqrt((double)args->k_dimension), q);
    unit(args->k + row * args->stride, args->k_dimension, 1, k);
    for (size_t j = 0; j < width; j++) v[j] = o[j] = 0;
    for (size_t i = 0; i < args->k_dimension; i++)
        for (size_t j = 0; j < width; j++) v[j] += (double)args->to[i * width + j] * k[i];
    for (size_t j = 0; j < width; j++) v[j] = beta * ((double)args->v[row * args->stride + j] - decay * v[j]);
    for (size_t i = 0; i < args->k_dimension; i++)
        for (size_t j = 0; j < width; j++) {
            float *s = &args->to[i * width + j];
            *s = (float)(decay * (double)*s + k[i] * v[j]);
            o[j] += (double)*s * q[i];
        }
    for (size_t j = 0; j < width; j++) square += o[j] * o[j] / (double)width;
    const double scale = 1 / sqrt(square + (double)args->epsilon);
    for (size_t j = 0; j < width; j++) {
        const double z = (double)args->z[row * args->y_stride + j];
        args->y[row * args->y_stride + j] = (float)(o[j] * scale * (double)args->norm[j] * z * sigmoid(z));
    }
}

static void delta(const struct delta_args *args) {
    const size_t bytes = args->k_dimension * args->v_dimension * sizeof(float);
    if (args->from == NULL)
        memset(args->to, 0, bytes);
    else if (args->from != args->to)
        memcpy(args->to, args->from, bytes);
    for (size_t row = 0; row < args->row_count; row++) delta_row(args, row);
}

static void gate(const float *gate, size_t count, float *y) {
    for (size_t i = 0; i < count; i++) y[i] = (float)((double)y[i] * sigmoid((double)gate[i]));
}

void recurrence_ref_install(struct recurrence_kernels *kernels) {
    *kernels = (struct recurrence_kernels){.convolve = convolve, .delta = delta, .gate = gate};
}
