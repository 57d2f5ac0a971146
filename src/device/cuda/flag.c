#include "device/cuda/flag.h"

#include "base/assert.h"

static uint32_t *word(const struct cuda_context *context, uint32_t index) {
    return (uint32_t *)(void *)(context->flag_words + (size_t)index * CUDA_FLAG_BYTES);
}

enum status cuda_flag_create(struct cuda_flag *flag, struct cuda_context *context, struct error *error) {
    *flag = (struct cuda_flag){.context = NULL};
    for (uint32_t index = 0; index < CUDA_FLAGS_MAX; index++)
        if ((context->flags_in_use >> index & 1) == 0) {
            context->flags_in_use |= (uint64_t)1 << index;
            context->flag_awaited[index] = 0;
            __atomic_store_n(word(context, index), 0, __ATOMIC_RELEASE);
            *flag = (struct cuda_flag){context, index};
            return STATUS_OK;
        }
    return error_set(error, STATUS_FULL, "cuda: all %d flags are in use", CUDA_FLAGS_MAX);
}

void cuda_flag_destroy(struct cuda_flag *flag) {
    if (flag->context == NULL) return;
    ASSERT((flag->context->flags_in_use >> flag->index & 1) == 1);
    flag->context->flags_in_use &= ~((uint64_t)1 << flag->index);
    *flag = (struct cuda_flag){.context = NULL};
}

uint32_t cuda_flag_value(const struct cuda_flag *flag) {
    /* acquire: pairs with the release of cuda_flag_raise, and with the barrier of a stream's write */
    return __atomic_load_n(word(flag->context, flag->index), __ATOMIC_ACQUIRE);
}

void cuda_flag_raise(const struct cuda_flag *flag, uint32_t value) {
    uint32_t *target = word(flag->context, flag->index), seen = __atomic_load_n(target, __ATOMIC_RELAXED);
    /* release: what was written before lies in memory before a stream, or cuda_flag_value, sees the value */
    while (seen < value &&
           !__atomic_compare_exchange_n(target, &seen, value, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {}
}

void cuda_flag_lower(const struct cuda_flag *flag) {
    __atomic_store_n(word(flag->context, flag->index), 0, __ATOMIC_RELEASE); /* as cuda_flag_raise */
}

uint64_t cuda_flag_address(const struct cuda_flag *flag) {
    return flag->context->flag_address + (uint64_t)flag->index * CUDA_FLAG_BYTES;
}

void cuda_flag_await(const struct cuda_flag *flag, uint32_t value) {
    uint32_t *awaited = &flag->context->flag_awaited[flag->index];
    if (value > *awaited) *awaited = value;
}

bool cuda_flags_raise_all(struct cuda_context *context, uint32_t *found, uint32_t *expected) {
    bool is_any = false;
    for (uint32_t index = 0; index < CUDA_FLAGS_MAX; index++) {
        if ((context->flags_in_use >> index & 1) == 0) continue;
        const struct cuda_flag flag = {context, index};
        const uint32_t value = cuda_flag_value(&flag), awaited = context->flag_awaited[index];
        if (value >= awaited) continue;
        if (!is_any) *found = value, *expected = awaited;
        is_any = true;
        cuda_flag_raise(&flag, awaited);
    }
    return is_any;
}
