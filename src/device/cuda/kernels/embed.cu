/* embed: rows of a table of any weight type, as floats.  Eight lanes have 32 columns; the same operations as
 * on the cpu, so the same bits. */
#include "device/cuda/rows.h"
#include "device/cuda/weight_types.h"
#include "tensor/type.h"

struct four {
    float v[4];
};

/* Columns 4 * word .. of unit `index` of the planes. */
template <typename T>
DEVICE struct four unit_values(const struct weight_planes &table, uint64_t index, uint32_t word) {
    T raw;
    struct unit u;
    raw.load(table, index);
    raw.expand(&u, (uint32_t)(index % 8));
    uint32_t codes = 0;
    UNROLL
    for (uint32_t j = 0; j < 8; j++) codes = j == word ? u.codes[j] : codes;
    const float scale = word < 4 ? u.scale[0] : u.scale[1], minimum = word < 4 ? u.minimum[0] : u.minimum[1];
    struct four y;
    UNROLL
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t byte = codes >> 8 * k & 255;
        const int32_t code = T::IS_SIGNED ? (int32_t)(int8_t)byte : (int32_t)byte - T::OFFSET;
        y.v[k] = scale * (float)code;
        if (T::HAS_MINIMUM) y.v[k] += minimum; /* adding zero would lose the sign of a zero */
    }
    return y;
}

DEVICE struct four plain_values(const struct weight_planes &table, uint32_t type, uint64_t element) {
    struct four y;
    UNROLL
    for (uint32_t k = 0; k < 4; k++) {
        if (type == TENSOR_F32)
            y.v[k] = at<float>(table.codes)[element + k];
        else if (type == TENSOR_F16)
            y.v[k] = half_value(at<uint16_t>(table.codes)[element + k]);
        else
            y.v[k] = bits_float((uint32_t)at<uint16_t>(table.codes)[element + k] << 16);
    }
    return y;
}

DEVICE struct four table_values(const struct weight_planes &table, uint32_t type, uint64_t row,
                                uint32_t columns, uint32_t column) {
    const uint64_t index = row * (columns / 32) + column / 32;
    const uint32_t word = column % 32 / 4;
    switch (type) {
    case TENSOR_Q4_0: return unit_values<type_q4_0>(table, index, word);
    case TENSOR_Q4_1: return unit_values<type_q4_1>(table, index, word);
    case TENSOR_Q5_0: return unit_values<type_q5_0>(table, index, word);
    case TENSOR_Q5_1: return unit_values<type_q5_1>(table, index, word);
    case TENSOR_Q8_0: return unit_values<type_q8_0>(table, index, word);
    case TENSOR_IQ4_NL: return unit_values<type_iq4_nl>(table, index, word);
    case TENSOR_Q2_K: return unit_values<type_q2_k>(table, index, word);
    case TENSOR_Q3_K: return unit_values<type_q3_k>(table, index, word);
    case TENSOR_Q4_K: return unit_values<type_q4_k>(table, index, word);
    case TENSOR_Q5_K: return unit_values<type_q5_k>(table, index, word);
    case TENSOR_Q6_K: return unit_values<type_q6_k>(table, index, word);
    case TENSOR_IQ4_XS: return unit_values<type_iq4_xs>(table, index, word);
    default: return plain_values(table, type, row * columns + column);
    }
}

/* Columns are multiples of 4. */
KERNEL(embed, cuda_embed_args, 256, 4) {
    dependents_start();
    dependency_wait();
    if (block_x() >= step_rows(args.step, args.row_count)) return;
    const struct step_row row = at<struct step_row>(args.rows)[block_x()];
    float *y = at<float>(args.y) + (uint64_t)block_x() * args.columns;
    for (uint32_t column = thread_index() * 4; column < args.columns; column += 1024) {
        struct four v =
            table_values(args.table, args.table_type, row.token, args.table_columns, args.column_first + column);
        UNROLL
        for (uint32_t k = 0; k < 4; k++) v.v[k] *= args.scale;
        if (args.positions_type != NO_WEIGHT) {
            const struct four p = table_values(args.positions, args.positions_type,
                                               row.position + args.position_offset, args.columns, column);
            UNROLL
            for (uint32_t k = 0; k < 4; k++) v.v[k] += p.v[k];
        }
        *(struct f32x4 *)(y + column) = {v.v[0], v.v[1], v.v[2], v.v[3]};
    }
}
