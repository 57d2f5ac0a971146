/* Any bytes as a GGUF file: refused with a reason, or every byte that struct gguf reaches is inside.  What it says of a
 * model is refused with a reason, or sizes that allocations follow agree with each other. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "format/gguf.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void read_bytes(const void *data, uint64_t size) {
    const uint8_t *bytes = data;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < size; i++) sum += bytes[i];
    sink += sum;
}

/* Every getter on the entry's own key: the one of its type must answer, the others reject. */
static void get_entry(const struct gguf *gguf, const struct gguf_entry *entry) {
    char *key = strndup(entry->key.text, entry->key.length);
    if (key == NULL) return;
    ASSERT(gguf_find(gguf, key) == entry);
    struct error error;
    uint64_t number = 0;
    float real = 0;
    bool flag = false;
    struct gguf_string text = {0};
    const struct gguf_entry *array;
    enum status statuses[] = {
        gguf_get_uint(gguf, key, UINT32_MAX, &number, &error),
        gguf_get_float(gguf, key, &real, &error),
        gguf_get_bool(gguf, key, &flag, &error),
        gguf_get_string(gguf, key, &text, &error),
        gguf_get_array(gguf, key, GGUF_STRING, &array, &error),
        gguf_get_array(gguf, key, GGUF_INT32, &array, &error),
        gguf_get_array(gguf, key, GGUF_FLOAT32, &array, &error),
    };
    size_t answers = 0;
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) answers += statuses[i] == STATUS_OK;
    ASSERT(answers <= 1);
    free(key);
}

static void check_layer(const struct model_config *config, size_t index) {
    const struct layer_config *layer = &config->layers[index];
    const struct state_config *state = &config->state;
    const size_t kv_heads = layer->kv.kv_head_count;
    ASSERT(layer->kv_layer <= index);
    ASSERT((kv_heads > 0) == (layer->mixer == MIXER_ATTENTION));
    ASSERT(layer->rope != ROPE_SLIDING || config->sliding_rope_dimension > 0);
    if (kv_heads > 0)
        ASSERT(config->head_count % kv_heads == 0);
    else
        ASSERT(state->layer_floats > 0 && layer->state_first + state->layer_floats <= model_state_floats(config));
}

static void read_config(const struct gguf *gguf) {
    struct error error = {0};
    struct arena arena;
    struct model_config config;
    arena_init(&arena);
    if (model_config_read(&config, gguf, &arena, &error) != STATUS_OK) {
        ASSERT(error.message[0] != '\0' && strchr(error.message, '\n') == NULL);
    } else {
        const struct experts_config *experts = &config.experts;
        ASSERT(config.layer_count > 0);
        ASSERT(experts->used <= experts->count && experts->dense_layers <= config.layer_count);
        if (experts->group_count > 1)
            ASSERT(experts->count % experts->group_count == 0 && experts->groups_used <= experts->group_count);
        size_t states = 0;
        for (size_t i = 0; i < config.layer_count; i++) {
            check_layer(&config, i);
            states += config.layers[i].kv.kv_head_count == 0;
        }
        ASSERT(states == config.state.layer_count);
    }
    arena_deinit(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct gguf gguf;
    struct error error = {0};
    if (gguf_open_memory(&gguf, data, size, "fuzz", &error) != STATUS_OK) {
        ASSERT(error.message[0] != '\0' && strchr(error.message, '\n') == NULL);
        return 0;
    }
    for (uint64_t i = 0; i < gguf.entry_count; i++) {
        const struct gguf_entry *entry = &gguf.entries[i];
        get_entry(&gguf, entry);
        for (uint64_t j = 0; j < entry->count; j++)
            if (entry->element_type == GGUF_STRING)
                read_bytes(entry->strings[j].text, entry->strings[j].length);
            else
                sink += (uint64_t)gguf_array_int(entry, j);
    }
    read_config(&gguf);
    for (uint64_t i = 0; i < gguf.tensor_count; i++) {
        const struct gguf_tensor *tensor = &gguf.tensors[i];
        ASSERT(tensor->data >= data && tensor->data + tensor->size_bytes <= data + size);
        read_bytes(tensor->name.text, tensor->name.length);
        read_bytes(tensor->data, tensor->size_bytes);
    }
    gguf_close(&gguf);
    return 0;
}
