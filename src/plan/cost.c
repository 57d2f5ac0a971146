#include "plan/cost.h"

#include <math.h>
#include <string.h>

#include "attention/list_buffer.h"
#include "attention/split.h"
#include "base/checked.h"
#include "cache/kv_tier.h"
#include "kernels/attention/attention.h"
#include "platform/io_file.h"

const char *const cost_part_names[COST_PARTS] = {"matrices", "layers", "attention", "selection",
                                                 "pages",    "link",   "disk",      "weights"};

enum { PART_BYTES = IO_ALIGNMENT }; /* of pages in parts, at least (decision 0030) */

/* ---- the model ---- */

static bool has_name(const struct gguf_tensor *tensor, const char *name) {
    return tensor->name.length == strlen(name) && memcmp(tensor->name.text, name, tensor->name.length) == 0;
}

uint64_t cost_matrix_types(const struct model_config *config, const struct gguf *gguf) {
    uint64_t types = 0;
    for (uint64_t i = 0; i < gguf->tensor_count; i++) {
        const struct gguf_tensor *tensor = &gguf->tensors[i];
        if (model_is_matrix(tensor) && model_step_share(gguf, config, tensor) > 0) types |= UINT64_C(1) << tensor->type;
    }
    return types;
}

void cost_model_init(struct cost_model *model, const struct machine *machine, const struct model_config *config,
                     const struct gguf *gguf) {
    *model = (struct cost_model){.machine = machine, .config = config, .weights = weight_sizes_of(gguf, config)};
    if (machine->device_link > 0) model->device_weight_bytes = weight_sizes_on_card(gguf, config).all;
    for (uint64_t i = 0; i < gguf->tensor_count; i++) {
        const struct gguf_tensor *tensor = &gguf->tensors[i];
        const bool is_embedding = has_name(tensor, "token_embd.weight");
        const double share = model_step_share(gguf, config, tensor);
        if (!model_is_matrix(tensor)) continue;
        if (share == 0) continue;
        model->row_seconds += (double)tensor->size_bytes * share /
                              machine_matrix_rate(machine, tensor->type, (size_t)tensor->dimensions[0]);
        *(is_embedding || has_name(tensor, "output.weight") ? &model->output_seconds : &model->token_seconds) +=
            (double)(tensor->dimensions[0] * tensor->dimensions[1] * tensor->dimensions[2]) * share /
            machine_matrix_block(machine, tensor->type);
    }
}

/* ---- a layer's attention ---- */

struct layer_work {
    double depth, kept;         /* rows, per KV head */
    double scored;              /* candidates, as those that were measured: larger leaves are fewer */
    double sampled;             /* keys that an estimate reads besides */
    double kv_heads, group;     /* of a layer, of all sequences */
    double dimensions;          /* k and v over those that were measured */
    double row_bytes, row_rate; /* of a token and KV head; bytes a second */
    const struct machine *machine;
    const struct machine_selection *selection; /* NULL: everything is attended to */
};

/* Tokens that are chosen together. */
static double unit_tokens(const struct select_options *select) {
    const size_t unit = select->method == &select_tree ? select->leaf
                        : select->page != 0            ? select->page
                                                       : max_size(select->method->own_page, 1);
    return (double)max_size(unit, select->take);
}

static double everything_seconds(const struct layer_work *work, double depth) {
    return depth * work->kv_heads * work->row_bytes / work->row_rate;
}

static double score_seconds(const struct layer_work *work) {
    const struct machine_selection *selection = work->selection;
    return selection->seconds +
           work->scored * work->kv_heads * work->dimensions * machine_by_group_at(selection->score, work->group);
}

static double rows_seconds(const struct layer_work *work) {
    return (work->kept + work->sampled) * work->kv_heads * work->dimensions *
           machine_by_group_at(work->selection->rows, work->group);
}

/* The preset, unless another method has taken its place. */
static const struct machine_selection *selection_of(const struct machine *machine, const struct plan *plan) {
    const struct preset *preset;
    char method[32];
    plan_method(plan, AXIS_SELECT, method, sizeof method);
    if (preset_find(&preset, plan->preset, NULL) == STATUS_OK && strcmp(preset->methods[AXIS_SELECT], method) == 0) {
        const struct machine_selection *found = machine_find_selection(machine, plan->preset);
        if (found != NULL) return found;
    }
    for (size_t i = 0; i < preset_count; i++)
        if (strcmp(preset_table[i]->methods[AXIS_SELECT], method) == 0 &&
            machine_find_selection(machine, preset_table[i]->name) != NULL)
            return machine_find_selection(machine, preset_table[i]->name);
    return machine_find_selection(machine, method);
}

/* ---- tiers ---- */

struct tiers {
    struct kv_cache_config cache;
    double chunks;       /* of a KV head of a layer without a window, as `heads` and `held` are */
    double window_bytes; /* of those with one, which are in RAM before others */
    double chunk_bytes;  /* of a chunk's rows */
    double page_bytes;   /* as it is stored */
    double heads;        /* of all layers and sequences */
    double held;         /* 0..1, of all chunks */
    double resident;     /* layers that stay */
    double list_heads;   /* of all, that have a buffer of their list */
};

/* Layers that attend to a window; and the tokens that each row of them sees. */
static size_t window_layers(const struct model_config *config) {
    size_t count = 0;
    for (size_t layer = 0; layer < config->layer_count; layer++)
        count += kv_layer_slides(config->kv_groups, config->kv_windows, layer);
    return count;
}
static double window_tokens(const struct model_config *config, double depth) {
    return config->kv_windows != NULL ? fmin(depth, (double)config->kv_windows->tokens) : depth;
}
static size_t window_heads(const struct model_config *config) {
    size_t heads = 0;
    for (size_t layer = 0; layer < config->layer_count; layer++)
        if (kv_layer_slides(config->kv_groups, config->kv_windows, layer))
            heads += kv_layer_heads(config->kv_groups, config->kv_head_count, layer);
    return heads;
}

static enum status tiers_of(struct tiers *tiers, const struct plan *plan, const struct model_config *config,
                            const struct cost_work *work, struct error *error) {
    const uint64_t depth = work->depth;
    const double sequences = (double)work->sequences,
                 model_heads = (double)kv_layer_lane(config->kv_groups, config->kv_head_count, config->layer_count, 0);
    struct plan counted = *plan;
    if (counted.sequence_capacity < work->sequences) counted.sequence_capacity = work->sequences;
    if (counted.context_size < depth + 1) counted.context_size = depth + 1;
    TRY(plan_check(&counted, config, error));
    TRY(plan_cache_config(&counted, config, &tiers->cache, error));
    const uint64_t minimum = plan->host_bytes > 0 ? kv_tier_bytes_min(&tiers->cache) : 0;
    if (plan->host_bytes > 0 && minimum > plan->host_bytes)
        return error_set(error, STATUS_MEMORY, "%llu MiB of RAM for KV: this plan needs %llu",
                         (unsigned long long)plan->host_bytes >> 20, (unsigned long long)minimum >> 20);
    struct kv_cache_config plain = tiers->cache;
    plain.key_index_bytes = 0;
    tiers->chunks = (double)kv_chunks_of(depth);
    const double sliding = (double)window_heads(config);
    tiers->heads = (model_heads - sliding) * sequences;
    tiers->chunk_bytes = (double)(kv_cache_bytes_per_token(&plain) * KV_CHUNK_TOKENS) / model_heads;
    const uint8_t quantized = !plan->quantized_pages  ? 0
                              : plan->fixes_fractions ? plan->quantized_of_16
                                                      : PAGE_FRACTION_WHOLE;
    const double all = tiers->chunks * tiers->heads,
                 window_chunks = sliding * sequences *
                                 fmin(ceil(window_tokens(config, (double)depth) / KV_CHUNK_TOKENS) + 1, tiers->chunks);
    tiers->page_bytes = tiers->chunk_bytes;
    tiers->held = 1;
    if (plan->host_bytes > 0) {
        const double slots = (double)kv_tier_chunk_slots(&tiers->cache, quantized) - window_chunks;
        tiers->page_bytes = kv_tier_page_bytes(&tiers->cache, quantized);
        if (all > 0) tiers->held = fmin(fmax(slots, 0) / all, 1);
    }
    tiers->window_bytes = window_chunks * tiers->page_bytes;
    tiers->resident = (double)plan->resident_layers;
    if (tiers->cache.list_bytes == 0) return STATUS_OK;
    /* Buffers come before layers that stay. */
    const double layer = (double)config->kv_head_count * sequences * tiers->chunks * tiers->chunk_bytes;
    tiers->resident = fmin(tiers->resident, floor((double)(plan->host_bytes - minimum) / layer));
    struct attention_options lists;
    TRY(plan_attention_options(&counted, config, &lists, error));
    tiers->list_heads = floor((double)tiers->cache.list_bytes /
                              (double)list_buffer_head_bytes(lists.kept_max, (size_t)tiers->chunk_bytes));
    return STATUS_OK;
}

/* Seconds of the processor for so many pages, or parts of so many, of page_bytes in the mean. */
static double handling_seconds(const struct machine *machine, double pages, double page_bytes) {
    return pages * machine->tier.page_seconds + pages * page_bytes / machine->memory.copy;
}

/* The system reads neighbours in one go that are asked for at once. */
static double scan_seconds(const struct machine *machine, double pages, double page_bytes) {
    const double rate = machine->tier.scan_rate > 0 ? machine->tier.scan_rate
                                                    : machine_disk_rate(machine, COST_SEGMENT_CHUNKS * page_bytes);
    return pages * page_bytes / rate;
}

/* ---- a step ---- */

struct step {
    struct cost *cost;
    const struct cost_model *model;
    const struct plan *plan;
    double sequences; /* that go through a pass together */
    struct tiers tiers;
    struct layer_work work;
    double chosen_layers;    /* those that select; the others attend to everything */
    uint64_t rebuild_chunks; /* of a head, that are computed again at most */
    double segment_seconds;  /* of reading weights, for a segment of a prompt */
};

/* All matrices: between one row and a block the time is linear in the rows. */
static double matrices_seconds(const struct step *step) {
    const struct cost_model *model = step->model;
    const double block = MACHINE_BLOCK_ROWS * (model->token_seconds + model->output_seconds);
    return model->row_seconds + (step->sequences - 1) / (MACHINE_BLOCK_ROWS - 1) * fmax(block - model->row_seconds, 0);
}

static void compute(struct step *step) {
    const struct machine *machine = step->model->machine;
    const double layers = (double)step->model->config->layer_count,
                 windows = (double)window_layers(step->model->config),
                 dense = (double)model_attention_layers(step->model->config) - windows - step->chosen_layers;
    double *parts = step->cost->parts;
    parts[COST_MATRICES] = matrices_seconds(step);
    parts[COST_LAYERS] = machine->step_seconds +
                         layers * (machine->layer_seconds + (step->sequences - 1) * machine->layer_token_seconds);
    parts[COST_ATTENTION] =
        dense * everything_seconds(&step->work, step->work.depth) +
        windows * everything_seconds(&step->work, window_tokens(step->model->config, step->work.depth));
    if (step->chosen_layers > 0) {
        parts[COST_SELECTION] = step->chosen_layers * score_seconds(&step->work);
        parts[COST_ATTENTION] += step->chosen_layers * rows_seconds(&step->work);
    }
}

static double computing(const struct cost *cost) {
    return cost->parts[COST_MATRICES] + cost->parts[COST_LAYERS] + cost->parts[COST_ATTENTION] +
           cost->parts[COST_SELECTION];
}

/* K and V that the device reads from RAM: of layers that attend to everything all, of others what they choose and its
 * slots lack, which hold a share of all that they could choose. */
static double over_link(const struct step *step) {
    const struct machine *machine = step->model->machine;
    const struct plan *plan = step->plan;
    const double layers = fmax((double)model_attention_layers(step->model->config), 1),
                 layer_bytes = (double)step->cost->kv_bytes / layers,
                 dense = layers - step->chosen_layers - (double)plan->near_layers,
                 lacking = fmax(step->chosen_layers * layer_bytes - (double)plan->unit_bytes, 0);
    if (!(machine->device_link > 0) || (plan->disk_directory == NULL && !plan->rows_in_host)) return 0;
    return (fmax(dense, 0) * layer_bytes + lacking * step->work.kept / step->work.depth) / machine->device_link;
}

/* One thread asks for pages, waits for them and handles them. */
static double reading(double disk, double processor) {
    return fmax(disk, processor) + COST_NOT_HIDDEN * fmin(disk, processor);
}

double cost_disk_share(double both, double processor) {
    return fmax(both >= (1 + COST_NOT_HIDDEN) * processor ? both - COST_NOT_HIDDEN * processor
                                                          : (both - processor) / COST_NOT_HIDDEN,
                0);
}

double cost_overlapped(double serial, double disk, double processor, double computed, double layers) {
    const double beside = fmax(disk + computed / layers, computed + processor + fmax(disk - processor, 0) / layers),
                 after = computed + reading(disk, processor);
    return beside + fmin(serial, 1) * (after - beside);
}

/* Seconds of a step whose layers compute a first run again from kept inputs (attention/split.h).  Nothing is read
 * beside a layer's other computing then. */
static double rebuilt(const struct step *step, double disk, double processor, double computed) {
    const struct model_config *config = step->model->config;
    const struct machine *machine = step->model->machine;
    const double outputs = (double)(config->kv_head_count * (config->k_dimension + config->v_dimension)),
                 hidden = (double)config->hidden_size, layers = (double)config->layer_count,
                 all_tokens = step->tiers.chunks * KV_CHUNK_TOKENS, tokens = all_tokens * (1 - step->tiers.held);
    const uint64_t workspace = step->rebuild_chunks * KV_CHUNK_TOKENS;
    const bool attends_ranges = workspace >= attention_range_rows((uint64_t)(step->tiers.chunks * KV_CHUNK_TOKENS));
    const struct split_question question = {
        .token_count = (uint64_t)tokens,
        .tokens_max = attends_ranges ? (uint64_t)tokens : min_size((uint64_t)tokens, workspace),
        .tile_tokens = KV_CHUNK_TOKENS,
        .input_bytes = hidden * 36 / 32, /* 8 bits, and a scale for 32 columns: as quantized weights multiply them */
        .kv_bytes = step->work.row_bytes * step->work.kv_heads,
        .bytes_per_second = step->cost->read_bytes / disk,
        .seconds_per_token = outputs * hidden / machine_matrix_block(machine, TENSOR_Q8_0),
        .schedule = SPLIT_OVERLAPPED,
        .first_tokens = REBUILD_ROWS_MAX,
        .held_tokens = kv_slots_beside((uint64_t)(step->tiers.held * all_tokens * layers))};
    const double again = layers * split_choose(&question).seconds + computed + processor,
                 read = cost_overlapped(machine->disk.serial, disk, processor, computed, layers);
    if (step->sequences > 1) return read; /* one sequence at a time */
    return again < SPLIT_GAIN_MIN * fmax(disk, computed + processor) ? again : read;
}

/* Of chunks of which a step wants the share `wanted`, and RAM has room for the share `held`, those that it finds there:
 * what it wanted before, but for a layer's slots, whose chunks are on their way and keep nothing for the next step. */
static double hits_of(const struct step *step, double held, double wanted) {
    const double moving = 1 / (double)step->model->config->layer_count;
    return held < 1 ? fmin(fmax(held - moving, 0) / wanted, 1) : 1;
}

/* A scan reads neighbours on disk in one request, which ends with their segment or at a chunk that RAM holds. */
static double request_chunks(double held) { return 1 / (1. / COST_SEGMENT_CHUNKS + held); }

static void read_everything(struct step *step, double computed) {
    struct cost *cost = step->cost;
    const struct tiers *tiers = &step->tiers;
    const double layers = (double)step->model->config->layer_count, missed = 1 - hits_of(step, tiers->held, 1);
    const double pages = tiers->chunks * tiers->heads * missed, together = request_chunks(1 - missed);
    const struct machine *machine = step->model->machine;
    const double disk = scan_seconds(machine, pages, tiers->page_bytes),
                 processor = handling_seconds(machine, pages, tiers->page_bytes);
    cost->read_bytes = pages * tiers->page_bytes;
    cost->missed_chunks = pages;
    cost->read_requests = pages / together;
    cost->parts[COST_DISK] = disk;
    cost->parts[COST_PAGES] = processor;
    cost->step_seconds = step->plan->rebuilds
                             ? rebuilt(step, disk, processor, computed)
                             : cost_overlapped(machine->disk.serial, disk, processor, computed, layers);
}

/* What the lists of a KV head want in a step. */
struct chosen {
    double chunks, hits; /* hits: the share of them that RAM holds */
    double miss_bytes;   /* read of a chunk, in one request: the slots of neighbours lie apart */
};

/* Of stretches of so many tokens, the share in which a choice of `share` of all tokens, in units, takes any. */
static double places_taken(double share, double tokens, double unit, double scatter) {
    return 1 - pow(1 - fmin(share, 1), pow(fmax(tokens / unit, 1), scatter));
}

static struct chosen chosen_of(const struct step *step, double share, double unit, double scatter, double held) {
    const struct tiers *tiers = &step->tiers;
    const double part_tokens = KV_CHUNK_TOKENS * fmin(fmax(PART_BYTES / tiers->page_bytes, 1. / 8), 1),
                 cut = scatter > 0 ? 0 : 1 / tiers->chunks, /* a run ends within a chunk */
        places = fmax(places_taken(share, KV_CHUNK_TOKENS, unit, scatter), 1e-12), wanted = fmin(places + cut, 1);
    struct chosen chosen = {
        .chunks = tiers->chunks * wanted, .hits = hits_of(step, held, wanted), .miss_bytes = tiers->page_bytes};
    if (!step->plan->quantized_pages) /* in parts, of which only those with a wanted row are read */
        chosen.miss_bytes *= fmin(places_taken(share, part_tokens, unit, scatter) / places, 1);
    return chosen;
}

/* The same of the rows that a head with a buffer lacks, single tokens.  Where lists are kept, one that changes has
 * grown old: it lacks more, by the root of its steps. */
static struct chosen added_to_lists(const struct step *step, double held) {
    const struct reuse_options *reuse = &step->plan->select.reuse;
    const double share = step->work.kept / step->work.depth,
                 changed = reuse->kind == REUSE_SIMILARITY ? 1 - reuse->reused : 1,
                 renewed = COST_RENEWED * share * (1 - share) / sqrt(changed);
    struct chosen added = chosen_of(step, renewed, 1, COST_RENEWED_SCATTER, held);
    added.chunks *= changed;
    return added;
}

/* Reads of chosen chunks, which layers ask for at once and wait for. */
struct chosen_reads {
    double layers; /* that read at all */
    double requests, bytes;
    bool are_neighbours; /* each with the next one, on disk */
};

/* Handling them included.  A machine that nobody has measured handles them as a scan's. */
static double chosen_seconds(const struct machine *machine, const struct chosen_reads *reads) {
    const struct machine_tier *tier = &machine->tier;
    if (reads->requests <= 0) return 0;
    if (tier->request_seconds > 0)
        return fmin(reads->layers, reads->requests / MACHINE_LAYER_REQUESTS) * tier->layer_seconds +
               reads->requests * (reads->are_neighbours ? tier->neighbour_seconds : tier->request_seconds) +
               reads->bytes * machine_tier_byte_seconds(machine);
    const double bytes = reads->bytes / reads->requests;
    return reading(reads->layers * machine_disk_seconds(machine, bytes, reads->requests / reads->layers),
                   handling_seconds(machine, reads->requests, bytes));
}

/* A window misses whole layers, those whose turn comes last: what was used the longest ago leaves.  Others lie
 * anywhere, one for each request. */
static struct chosen_reads reads_of(const struct step *step, const struct chosen *lists, double requests,
                                    double bytes) {
    const bool are_neighbours = step->plan->select.method->scatter == 0;
    const double anywhere = step->chosen_layers * (1 - pow(1 - 1 / fmax(step->chosen_layers, 1), requests));
    return (struct chosen_reads){.requests = requests,
                                 .bytes = bytes,
                                 .are_neighbours = are_neighbours,
                                 .layers =
                                     are_neighbours ? requests / (step->work.kv_heads * lists->chunks) : anywhere};
}

/* Heads with a buffer lack the rows that their last list did not have; the others all of theirs. */
static void read_chosen(struct step *step, double computed) {
    struct cost *cost = step->cost;
    const struct tiers *tiers = &step->tiers;
    const struct machine *machine = step->model->machine;
    const double kv_heads = step->work.kv_heads, layers = step->tiers.heads / kv_heads;
    const double heads = kv_heads * step->chosen_layers, buffered = fmin(tiers->list_heads, heads);
    const double resident = fmin(tiers->resident, layers - step->chosen_layers);
    const double resident_share = resident / layers; /* they take of what RAM holds */
    const double held = fmax(tiers->held - resident_share, 0) * layers / fmax(step->chosen_layers, 1);
    const struct select_options *select = &step->plan->select;
    const struct chosen lists = chosen_of(step, step->work.kept / step->work.depth, unit_tokens(select),
                                          select->method->scatter, held),
                        added = added_to_lists(step, held);
    const double dense = fmax(layers - step->chosen_layers - resident, 0); /* whole layers from disk */
    const double list_misses = (heads - buffered) * lists.chunks * (1 - lists.hits),
                 added_misses = buffered * added.chunks * (1 - added.hits), misses = list_misses + added_misses;
    const double list_bytes = list_misses * lists.miss_bytes, added_bytes = added_misses * added.miss_bytes;
    const double dense_pages = kv_heads * dense * tiers->chunks;
    const struct chosen_reads reads = reads_of(step, &lists, misses, list_bytes + added_bytes);
    const double dense_handling = handling_seconds(machine, dense_pages, tiers->page_bytes);
    const double waited = chosen_seconds(machine, &reads) +
                          reading(scan_seconds(machine, dense_pages, tiers->page_bytes), dense_handling);
    cost->parts[COST_PAGES] = handling_seconds(machine, misses, reads.bytes / fmax(misses, 1)) + dense_handling;
    cost->parts[COST_DISK] = fmax(waited - cost->parts[COST_PAGES], 0);
    cost->missed_chunks = misses + dense_pages;
    cost->read_requests = misses + dense_pages / request_chunks(0);
    cost->read_bytes = list_bytes + added_bytes + dense_pages * tiers->page_bytes;
    cost->step_seconds = computed + waited;
}

/* Weights come while other layers compute, from the same disk as KV: the next pass begins where this one ends. */
static void read_weights(struct step *step, uint64_t host_bytes, double computed) {
    struct cost *cost = step->cost;
    const struct machine *machine = step->model->machine;
    const double serial = fmin(machine->disk.serial, 1);
    if (host_bytes == 0 || host_bytes >= step->model->weights.all) return;
    const double rate = machine_disk_rate(machine, machine_disk_bytes[MACHINE_DISK_SIZES - 1]);
    cost->pass_bytes = weight_sizes_step_bytes(&step->model->weights, host_bytes, (size_t)step->sequences);
    const double seconds = cost->pass_bytes / rate;
    step->segment_seconds = weight_sizes_pass_bytes(&step->model->weights, host_bytes) / rate;
    cost->parts[COST_WEIGHTS] = seconds;
    cost->step_seconds = fmax(cost->step_seconds, cost->parts[COST_DISK] + seconds) + serial * fmin(seconds, computed);
}

static void count_bytes(struct step *step, uint64_t depth) {
    struct cost *cost = step->cost;
    const struct tiers *tiers = &step->tiers;
    struct kv_cache_config plain = tiers->cache;
    plain.key_index_bytes = 0;
    const uint64_t per_token = kv_cache_bytes_per_token(&plain);
    cost->held = tiers->held;
    cost->kv_bytes = (uint64_t)(tiers->chunks * tiers->heads * tiers->page_bytes + tiers->window_bytes);
    cost->key_index_bytes = (kv_cache_bytes_per_token(&tiers->cache) - per_token) * depth * (uint64_t)step->sequences;
    cost->host_bytes = step->plan->host_bytes > 0 ? step->plan->host_bytes : cost->kv_bytes + cost->key_index_bytes;
    if (step->plan->disk_directory != NULL) cost->disk_bytes = cost->kv_bytes + cost->key_index_bytes;
    if (!(step->model->machine->device_link > 0)) return;
    cost->device_bytes = cost->key_index_bytes + step->plan->unit_bytes;
    if (step->plan->disk_directory != NULL) return;
    const uint64_t layers = max_size(model_attention_layers(step->model->config), 1),
                   near = step->plan->rows_in_host ? cost->kv_bytes / layers * step->plan->near_layers : cost->kv_bytes;
    cost->device_bytes += near;
    cost->host_bytes = cost->kv_bytes - near;
}

/* Prompts attend to everything; what they store is written while they compute, and weights are read for each segment.
 */
static double prompt_seconds(const struct step *step, uint64_t depth) {
    const struct machine *machine = step->model->machine;
    const struct model_config *config = step->model->config;
    const double tokens = (double)depth, layers = (double)config->layer_count;
    const double windows = (double)window_layers(config), seen = window_tokens(config, tokens),
                 pairs = ((double)model_attention_layers(config) - windows) * tokens * tokens / 2 +
                         windows * seen * (tokens - seen / 2);
    const double products = (double)(config->head_count * (config->k_dimension + config->v_dimension)) * pairs;
    const double computed = tokens * (step->model->token_seconds + layers * machine->layer_token_seconds) +
                            products / machine->attend_block;
    const double written = (double)step->cost->disk_bytes / step->sequences / machine->disk.write,
                 segment = (double)plan_segment_size(step->plan, config),
                 weights = ceil(tokens / segment) * step->segment_seconds;
    return fmax(computed, fmax(written, weights)) + step->cost->step_seconds;
}

static void work_of(struct step *step, const struct plan *plan, uint64_t depth) {
    const struct model_config *config = step->model->config;
    const struct machine *machine = step->model->machine;
    const double group = (double)config->head_count / (double)config->kv_head_count;
    const bool f16 = plan->k_type == KV_F16 || !(machine->attend_q8.one > 0); /* as many bytes a second */
    struct kv_cache_config plain = step->tiers.cache;
    plain.key_index_bytes = 0;
    step->work = (struct layer_work){
        .depth = (double)depth,
        .kept = (double)depth,
        .kv_heads = (double)config->kv_head_count * step->sequences,
        .group = group,
        .dimensions = (double)(config->k_dimension + config->v_dimension) / (2 * MACHINE_DIMENSION),
        .row_bytes = (double)kv_cache_bytes_per_token(&plain) /
                     (double)kv_layer_lane(config->kv_groups, config->kv_head_count, config->layer_count, 0),
        .row_rate = machine_by_group_at(f16 ? machine->attend_f16 : machine->attend_q8, group),
        .machine = machine};
}

static enum status selection_work(struct step *step, const struct plan *plan, uint64_t depth, struct error *error) {
    const struct model_config *config = step->model->config;
    const struct select_shape shape = plan_select_shape(config);
    uint64_t kept = depth;
    if (plan->select.method == NULL || plan->select.method == &select_all) return STATUS_OK;
    TRY(select_options_kept_max(&plan->select, &shape, depth > 0 ? depth : 1, &kept, error));
    if (depth < plan->select.exact_below) return STATUS_OK;
    if (plan->select.loss > 0) {
        const double share = unit_tokens(&plan->select) > 1 ? COST_DIAL_PAGES : COST_DIAL_TOKENS;
        kept = min_size(kept, (uint64_t)(share * (double)depth));
    }
    if (kept >= depth) return STATUS_OK;
    step->work.selection = selection_of(step->model->machine, plan);
    if (step->work.selection == NULL)
        return error_set(error, STATUS_UNSUPPORTED, "%s: this machine's file has no select.* of it", plan->preset);
    step->work.kept = (double)kept;
    step->work.scored = (double)depth;
    if (plan->select.method == &select_tree)
        step->work.scored *= (double)select_options_default().leaf / (double)plan->select.leaf;
    if (plan->select.receipt || plan->select.loss > 0)
        step->work.sampled = (double)(depth * plan->select.sampled_keys) / KV_CHUNK_TOKENS;
    const size_t attending = model_attention_layers(config) - window_layers(config);
    step->chosen_layers = (double)(attending - min_size(plan->select.dense_layers, attending));
    return STATUS_OK;
}

enum status cost_of_plan(struct cost *cost, const struct cost_model *model, const struct plan *plan,
                         const struct cost_work *given, struct error *error) {
    struct cost_work work = *given;
    if (work.sequences == 0) work.sequences = 1;
    struct step step = {.cost = cost, .model = model, .plan = plan, .sequences = (double)work.sequences};
    struct attention_options attention;
    *cost = (struct cost){.held = 1};
    TRY(tiers_of(&step.tiers, plan, model->config, &work, error));
    work_of(&step, plan, work.depth);
    TRY(selection_work(&step, plan, work.depth, error));
    TRY(plan_attention_options(plan, model->config, &attention, error));
    step.rebuild_chunks = attention.rebuild.chunks;
    compute(&step);
    count_bytes(&step, work.depth);
    if ((step.tiers.held < 1 || work.weights_host_bytes > 0) && !machine_knows_disk(model->machine))
        return error_set(error, STATUS_UNSUPPORTED,
                         "the machine's numbers: disk.write: none, expected those "
                         "of a disk, which this plan reads: loam plan --measure");
    const double computed = computing(cost);
    cost->parts[COST_LINK] = over_link(&step);
    cost->step_seconds = fmax(computed, cost->parts[COST_LINK]);
    if (step.tiers.held < 1 && step.chosen_layers > 0)
        read_chosen(&step, cost->step_seconds);
    else if (step.tiers.held < 1)
        read_everything(&step, cost->step_seconds);
    read_weights(&step, work.weights_host_bytes, computed);
    for (enum cost_part part = 0; part < COST_PARTS; part++)
        if (cost->parts[part] > cost->parts[cost->limit]) cost->limit = part;
    cost->prompt_seconds = prompt_seconds(&step, work.depth);
    return STATUS_OK;
}
