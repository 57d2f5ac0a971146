/* Where things lie in a document's files (docs/formats.md).
 *
 *   N.pages     places of states, where layers keep them; two tails, each [layer][head] pages; then segments of 16
 *               chunks, each [layer][head][16] pages
 *               (of two sizes where layout.fractions says so; the same of each in all segments of a span, but for
 *               the first pages of heads, which may be rows)
 *               With groups of layers each page is as large as its layer's group has it.
 *   N.metadata   segments of 16 chunks, each [layer][head][16] entries of key_index_bytes, unpadded
 *
 * Nothing has to be looked up to find a page, whatever the order in which pages were written. */
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "cache/kv_windows.h"
#include "cache/store/store_internal.h"

static bool word_good(const char *word) {
    size_t length = strnlen(word, STORE_WORD_MAX);
    return length > 0 && length < STORE_WORD_MAX && strspn(word, "abcdefghijklmnopqrstuvwxyz0123456789.,+-") == length;
}

/* A layer's sixteenths in one character, 0 to 9 and a to g. */
static const char fraction_digits[] = "0123456789abcdefg";
/* In front of them: first_is_rows. */
static const char first_rows_mark = 'r';

enum { SPAN_TEXT_BYTES = PAGE_FRACTIONS_LAYERS_MAX + 16 };

/* A span's layers, a character each; one character where all are the same and `shorter`. */
static size_t format_span(const uint8_t *sixteenths, size_t layer_count, bool shorter, char *text) {
    size_t same = 1;
    while (same < layer_count && sixteenths[same] == sixteenths[0]) same++;
    const size_t count = shorter && same == layer_count ? 1 : layer_count;
    for (size_t i = 0; i < count; i++) text[i] = fraction_digits[sixteenths[i]];
    text[count] = '\0';
    return count;
}

/* " share=88g0...", "share=r88g0..." where first pages are rows, and for every later span ",SEGMENT:80g0..." */
static void format_fractions(const struct page_fractions *fractions, char text[SPAN_TEXT_BYTES * PAGE_SPANS_MAX]) {
    size_t used = (size_t)sprintf(text, " share=");
    if (fractions->first_is_rows) text[used++] = first_rows_mark;
    used += format_span(fractions->sixteenths, fractions->layer_count, false, text + used);
    for (size_t i = 0; i < fractions->later_count; i++) {
        const struct page_span *span = &fractions->later[i];
        used += (size_t)sprintf(text + used, ",%u:", span->chunk_first / SEGMENT_CHUNKS);
        used += format_span(span->sixteenths, fractions->layer_count, true, text + used);
    }
}

enum { GROUPS_TEXT_BYTES = STORE_GROUP_LAYERS_MAX + 16 + STORE_GROUPS_MAX * (STORE_WORD_MAX + 40) };

static bool layers_differ(const struct store_layout *layout) {
    return layout->groups.later_count > 0 || layout->state_bytes > 0;
}

/* " groups=0110/CODEC/HEADS/CHUNK/TAIL": each layer's group, and the later groups; '-' of a layer without pages. */
static const char no_group_mark = '-';

static void format_groups(const struct store_layout *layout, char text[GROUPS_TEXT_BYTES]) {
    const struct store_groups *groups = &layout->groups;
    size_t used = (size_t)sprintf(text, " groups=");
    for (size_t i = 0; i < layout->layer_count && i < STORE_GROUP_LAYERS_MAX; i++)
        text[used++] = groups->of_layer[i] == STORE_GROUP_NONE ? no_group_mark : (char)('0' + groups->of_layer[i]);
    text[used] = '\0';
    for (size_t i = 0; i < groups->later_count; i++) {
        const struct store_group *group = &groups->later[i];
        used += (size_t)sprintf(text + used, "/%s/%u/%u/%u", group->codec, group->kv_head_count, group->chunk_bytes,
                                group->tail_bytes);
    }
}

/* " windows=1024/7dbf6": tokens, and four layers in each character, the first one lowest. */
enum { WINDOWS_TEXT_BYTES = STORE_WINDOW_LAYERS_MAX / 4 + 32 };

static void format_windows(const struct store_layout *layout, char text[WINDOWS_TEXT_BYTES]) {
    const struct store_windows *windows = &layout->windows;
    size_t used = (size_t)sprintf(text, " windows=%u/", windows->tokens);
    for (size_t i = 0; i < layout->layer_count && i < STORE_WINDOW_LAYERS_MAX; i += 4) {
        unsigned digit = 0;
        for (size_t bit = 0; bit < 4 && i + bit < STORE_WINDOW_LAYERS_MAX; bit++)
            digit |= (unsigned)windows->slides[i + bit] << bit;
        text[used++] = "0123456789abcdef"[digit];
    }
    text[used] = '\0';
}

/* Bytes of the text, without its zero; text NULL: only counted. */
static size_t format(const struct store_layout *layout, char *text, size_t text_bytes) {
    char tail[24] = "", fractions[SPAN_TEXT_BYTES * PAGE_SPANS_MAX] = "", groups[GROUPS_TEXT_BYTES] = "",
         version[24] = "", states[24] = "", windows[WINDOWS_TEXT_BYTES] = "";
    if (layout->tail_bytes != 0) snprintf(tail, sizeof tail, " tail=%u", layout->tail_bytes);
    if (layout->fractions.layer_count > 0) format_fractions(&layout->fractions, fractions);
    if (layers_differ(layout) || layout->windows.tokens > 0)
        snprintf(version, sizeof version, "version=%d ",
                 layout->windows.tokens > 0 ? LAYOUT_VERSION_WINDOWS
                 : layout->state_bytes > 0  ? LAYOUT_VERSION_STATES
                                            : LAYOUT_VERSION_GROUPS);
    if (layers_differ(layout)) format_groups(layout, groups);
    if (layout->windows.tokens > 0) format_windows(layout, windows);
    if (layout->state_bytes > 0) snprintf(states, sizeof states, " states=%u", layout->state_bytes);
    return (size_t)snprintf(
        text, text_bytes, "%scodec=%s layers=%u heads=%u chunk=%u%s%s%s%s%s metadata=%s/%u segment=%d", version,
        layout->codec, layout->layer_count, layout->kv_head_count, layout->chunk_bytes, tail, fractions, groups, states,
        windows, layout->key_index_kind, layout->key_index_bytes, SEGMENT_CHUNKS);
}

static enum status span_check(const uint8_t *sixteenths, size_t layer_count, struct error *error) {
    for (size_t i = 0; i < layer_count; i++)
        if (sixteenths[i] > PAGE_FRACTION_WHOLE)
            return error_set(error, STATUS_USAGE, "layout: a fraction of %u sixteenths in layer %zu", sixteenths[i], i);
    return STATUS_OK;
}

static enum status fractions_check(const struct store_layout *layout, struct error *error) {
    const struct page_fractions *fractions = &layout->fractions;
    if (fractions->layer_count == 0) return STATUS_OK;
    if (layout->tail_bytes == 0 || fractions->layer_count != layout->layer_count ||
        fractions->layer_count > PAGE_FRACTIONS_LAYERS_MAX)
        return error_set(
            error, STATUS_USAGE,
            "layout: fractions of %u layers, expected of %u and pages of two sizes (for at most %d layers)",
            fractions->layer_count, layout->layer_count, PAGE_FRACTIONS_LAYERS_MAX);
    TRY(span_check(fractions->sixteenths, fractions->layer_count, error));
    if (fractions->later_count >= PAGE_SPANS_MAX)
        return error_set(error, STATUS_USAGE, "layout: %u spans of fractions, at most %d", fractions->later_count + 1,
                         PAGE_SPANS_MAX);
    for (size_t i = 0; i < fractions->later_count; i++) {
        const uint32_t first = fractions->later[i].chunk_first,
                       before = i > 0 ? fractions->later[i - 1].chunk_first : 0;
        if (first % SEGMENT_CHUNKS != 0 || first <= before)
            return error_set(error, STATUS_USAGE,
                             "layout: fractions from chunk %u on, expected a multiple of %d above %u", first,
                             SEGMENT_CHUNKS, before);
        TRY(span_check(fractions->later[i].sixteenths, fractions->layer_count, error));
    }
    return STATUS_OK;
}

static enum status size_check(const char *name, uint32_t value, uint32_t min, uint32_t max, struct error *error) {
    if (value >= min && value <= max) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "layout: %u %s, expected %u to %u", value, name, min, max);
}

static enum status chunk_check(uint32_t chunk_bytes, uint32_t tail_bytes, struct error *error) {
    TRY(size_check("bytes of a chunk", chunk_bytes, KV_CHUNK_BLOCKS, STORE_CHUNK_BYTES_MAX, error));
    if (tail_bytes % KV_CHUNK_BLOCKS != 0 || tail_bytes > STORE_CHUNK_BYTES_MAX)
        return error_set(error, STATUS_USAGE, "layout: %u bytes of a tail are not 8 blocks", tail_bytes);
    if (chunk_bytes % KV_CHUNK_BLOCKS != 0)
        return error_set(error, STATUS_USAGE, "layout: %u bytes of a chunk are not 8 blocks", chunk_bytes);
    return STATUS_OK;
}

static enum status groups_check(const struct store_layout *layout, struct error *error) {
    const struct store_groups *groups = &layout->groups;
    bool used[STORE_GROUPS_MAX + 1] = {false};
    if (!layers_differ(layout)) return STATUS_OK;
    if (groups->later_count >= STORE_GROUPS_MAX || layout->layer_count > STORE_GROUP_LAYERS_MAX)
        return error_set(error, STATUS_USAGE, "layout: %u groups of %u layers, expected at most %d of %d",
                         groups->later_count + 1, layout->layer_count, STORE_GROUPS_MAX, STORE_GROUP_LAYERS_MAX);
    if (layout->fractions.layer_count > 0)
        return error_set(error, STATUS_USAGE, "layout: layers differ, and pages are of two forms");
    for (size_t i = 0; i < groups->later_count; i++) {
        const struct store_group *group = &groups->later[i];
        if (!word_good(group->codec))
            return error_set(error, STATUS_USAGE, "layout: a name of a codec that is no word");
        TRY(size_check("KV heads", group->kv_head_count, 1, STORE_HEADS_MAX, error));
        TRY(chunk_check(group->chunk_bytes, group->tail_bytes, error));
        if ((group->tail_bytes != 0) != (layout->tail_bytes != 0))
            return error_set(error, STATUS_USAGE, "layout: some groups have tails of their own, some not");
    }
    for (size_t i = 0; i < layout->layer_count; i++) {
        const bool has_pages = groups->of_layer[i] != STORE_GROUP_NONE;
        if (has_pages ? groups->of_layer[i] > groups->later_count : layout->state_bytes == 0)
            return error_set(error, STATUS_USAGE, "layout: layer %zu is of group %u, expected 0 to %u", i,
                             groups->of_layer[i], groups->later_count);
        used[groups->of_layer[i]] = true;
    }
    for (size_t i = 0; i <= groups->later_count; i++)
        if (!used[i]) return error_set(error, STATUS_USAGE, "layout: no layer is of group %zu", i);
    if (used[STORE_GROUP_NONE] != (layout->state_bytes > 0))
        return error_set(error, STATUS_USAGE, "layout: states of %u bytes, and no layer that keeps one",
                         layout->state_bytes);
    return STATUS_OK;
}

static enum status windows_check(const struct store_layout *layout, struct error *error) {
    const struct store_windows *windows = &layout->windows;
    size_t count = 0, last = 0;
    for (size_t i = 0; i < STORE_WINDOW_LAYERS_MAX; i++) {
        count += windows->slides[i];
        if (windows->slides[i]) last = i;
    }
    if (windows->tokens == 0 && count == 0) return STATUS_OK;
    if (layout->layer_count > STORE_WINDOW_LAYERS_MAX || last >= layout->layer_count || layout->state_bytes > 0 ||
        count == 0 || windows->tokens == 0)
        return error_set(error, STATUS_USAGE,
                         "layout: %zu layers with windows of %u tokens, expected some of at most %d, and no states",
                         count, windows->tokens, STORE_WINDOW_LAYERS_MAX);
    return STATUS_OK;
}

enum status layout_check(const struct store_layout *layout, struct error *error) {
    if (!word_good(layout->codec) || !word_good(layout->key_index_kind))
        return error_set(error, STATUS_USAGE, "layout: a name of a codec or of a key index that is no word");
    TRY(size_check("layers", layout->layer_count, 1, STORE_LAYERS_MAX, error));
    TRY(size_check("KV heads", layout->kv_head_count, 1, STORE_HEADS_MAX, error));
    TRY(size_check("bytes of key index", layout->key_index_bytes, 0, STORE_KEY_INDEX_BYTES_MAX, error));
    TRY(chunk_check(layout->chunk_bytes, layout->tail_bytes, error));
    TRY(size_check("bytes of states", layout->state_bytes, 0, STORE_STATE_BYTES_MAX, error));
    TRY(groups_check(layout, error));
    TRY(windows_check(layout, error));
    TRY(fractions_check(layout, error));
    if (format(layout, NULL, 0) >= STORE_TEXT_MAX)
        return error_set(error, STATUS_USAGE,
                         "layout: groups, windows and fractions of %u layers do not fit into its %d bytes",
                         layout->layer_count, STORE_TEXT_MAX);
    return STATUS_OK;
}

void layout_format(const struct store_layout *layout, char *text) { (void)format(layout, text, STORE_TEXT_MAX); }

/* A character for each of the layers at *text, or one for all; false: neither. */
static bool span_parse(const char **text, size_t layer_count, uint8_t *sixteenths) {
    const size_t length = strspn(*text, fraction_digits);
    if (length != layer_count && length != 1) return false;
    for (size_t i = 0; i < layer_count; i++)
        sixteenths[i] = (uint8_t)(strchr(fraction_digits, (*text)[length > 1 ? i : 0]) - fraction_digits);
    *text += length;
    return true;
}

/* ",SEGMENT:80g0..." at *text, as often as it is there. */
static bool later_parse(const char **text, struct page_fractions *fractions) {
    while (**text == ',') {
        unsigned segment;
        int read = 0;
        if (fractions->later_count == PAGE_SPANS_MAX - 1) return false;
        struct page_span *span = &fractions->later[fractions->later_count++];
        if (sscanf(*text, ",%9u:%n", &segment, &read) != 1 || read == 0) return false;
        if (segment > STORE_TOKENS_MAX / KV_CHUNK_TOKENS / SEGMENT_CHUNKS) return false;
        span->chunk_first = segment * SEGMENT_CHUNKS;
        *text += read;
        if (!span_parse(text, fractions->layer_count, span->sixteenths)) return false;
    }
    return true;
}

/* " share=r88g0..." at *text, if it is there. */
static enum status fractions_parse(const char **text, struct store_layout *layout, struct error *error) {
    static const char word[] = " share=";
    if (strncmp(*text, word, sizeof word - 1) != 0) return STATUS_OK;
    struct page_fractions *fractions = &layout->fractions;
    const char *share = *text + sizeof word - 1, *rest = share;
    fractions->first_is_rows = *rest == first_rows_mark;
    if (fractions->first_is_rows) rest++;
    const size_t length = strcspn(share, " "), first = strcspn(rest, ", ");
    const bool good = first == layout->layer_count && first <= PAGE_FRACTIONS_LAYERS_MAX &&
                      span_parse(&rest, first, fractions->sixteenths);
    fractions->layer_count = good ? (uint16_t)first : 0;
    if (!good || !later_parse(&rest, fractions) || rest != share + length)
        return error_set(error, STATUS_DOCUMENT,
                         "its layout says%s%.*s, expected a fraction of 0 to 9 or a to g for each of its %u layers",
                         word, (int)(length < 64 ? length : 64), share, layout->layer_count);
    *text = rest;
    return STATUS_OK;
}

/* " groups=0110/CODEC/HEADS/CHUNK/TAIL states=BYTES" at *text, if it is there; false: it is not what it must be. */
static bool groups_parse(const char **text, struct store_layout *layout) {
    static const char word[] = " groups=";
    struct store_groups *groups = &layout->groups;
    if (strncmp(*text, word, sizeof word - 1) != 0) return true;
    const char *rest = *text + sizeof word - 1;
    const size_t count = strspn(rest, "0123-");
    if (count != layout->layer_count || count > STORE_GROUP_LAYERS_MAX) return false;
    for (size_t i = 0; i < count; i++)
        groups->of_layer[i] = rest[i] == no_group_mark ? STORE_GROUP_NONE : (uint8_t)(rest[i] - '0');
    for (rest += count; *rest == '/' && groups->later_count < STORE_GROUPS_MAX - 1;) {
        struct store_group *group = &groups->later[groups->later_count++];
        int read = 0;
        if (sscanf(rest, "/%47[^/ ]/%u/%u/%u%n", group->codec, &group->kv_head_count, &group->chunk_bytes,
                   &group->tail_bytes, &read) != 4)
            return false;
        rest += read;
    }
    int read = 0;
    if (sscanf(rest, " states=%u%n", &layout->state_bytes, &read) == 1) rest += read;
    *text = rest;
    return true;
}

/* " windows=..." at *text, if it is there; what it says is checked when it is written again. */
static void windows_parse(const char **text, struct store_layout *layout) {
    int read = 0;
    if (sscanf(*text, " windows=%u/%n", &layout->windows.tokens, &read) != 1 || read == 0) return;
    const char *digit = *text + read;
    for (size_t i = 0; i < STORE_WINDOW_LAYERS_MAX && strchr("0123456789abcdef", *digit) != NULL && *digit != '\0';
         digit++)
        for (unsigned bit = 0; bit < 4 && i < STORE_WINDOW_LAYERS_MAX; bit++, i++)
            layout->windows.slides[i] =
                ((size_t)(strchr("0123456789abcdef", *digit) - "0123456789abcdef") >> bit & 1) != 0;
    *text = digit;
}

bool layout_is_read(const char *text, unsigned *version) {
    *version = 1; /* of texts that name none */
    if (sscanf(text, "version=%9u ", version) != 1) return true;
    return *version >= LAYOUT_VERSION_FIRST && *version <= LAYOUT_VERSION_LAST;
}

enum status layout_parse(const char *text, struct store_layout *layout, struct error *error) {
    int segment, read = 0;
    unsigned version;
    char again[STORE_TEXT_MAX];
    *layout = (struct store_layout){0};
    if (!layout_is_read(text, &version))
        return error_set(error, STATUS_DOCUMENT, "found version %u of documents, expected %d to %d", version,
                         LAYOUT_VERSION_FIRST, LAYOUT_VERSION_LAST);
    const char *words = strncmp(text, "version=", 8) == 0 ? text + strcspn(text, " ") + 1 : text;
    bool good = sscanf(words, "codec=%47[^ ] layers=%u heads=%u chunk=%u%n", layout->codec, &layout->layer_count,
                       &layout->kv_head_count, &layout->chunk_bytes, &read) == 4;
    const char *rest = words + read;
    read = 0;
    if (good && sscanf(rest, " tail=%u%n", &layout->tail_bytes, &read) == 1) rest += read;
    if (good) TRY(fractions_parse(&rest, layout, error));
    good = good && groups_parse(&rest, layout);
    if (good) windows_parse(&rest, layout);
    good = good && sscanf(rest, " metadata=%47[^/]/%u segment=%d", layout->key_index_kind, &layout->key_index_bytes,
                          &segment) == 3;
    good = good && layout_check(layout, NULL) == STATUS_OK;
    if (good) layout_format(layout, again);
    if (good && strcmp(again, text) == 0) return STATUS_OK;
    return error_set(error, STATUS_DOCUMENT, "its layout is none of this loam: %.120s", text);
}

static size_t rows_bytes(uint32_t chunk_bytes, uint32_t tail_bytes) {
    return tail_bytes != 0 ? tail_bytes : chunk_bytes;
}

size_t store_page_bytes(const struct store_layout *layout) {
    size_t bytes = layout->chunk_bytes;
    for (size_t i = 0; i < layout->groups.later_count; i++)
        bytes = max_size(bytes, layout->groups.later[i].chunk_bytes);
    return align_up(bytes, IO_ALIGNMENT);
}

size_t store_tail_bytes(const struct store_layout *layout) {
    size_t bytes = rows_bytes(layout->chunk_bytes, layout->tail_bytes);
    for (size_t i = 0; i < layout->groups.later_count; i++)
        bytes = max_size(bytes, rows_bytes(layout->groups.later[i].chunk_bytes, layout->groups.later[i].tail_bytes));
    return align_up(bytes, IO_ALIGNMENT);
}

bool store_layout_same_pages(const struct store_layout *a, const struct store_layout *b) {
    const struct store_groups *groups = &a->groups, *others = &b->groups;
    bool same = strcmp(a->codec, b->codec) == 0 && a->layer_count == b->layer_count &&
                a->kv_head_count == b->kv_head_count && a->chunk_bytes == b->chunk_bytes &&
                a->state_bytes == b->state_bytes && a->windows.tokens == b->windows.tokens &&
                memcmp(a->windows.slides, b->windows.slides, sizeof a->windows.slides) == 0 &&
                a->tail_bytes == b->tail_bytes && groups->later_count == others->later_count &&
                memcmp(groups->of_layer, others->of_layer, sizeof groups->of_layer) == 0;
    for (size_t i = 0; same && i < groups->later_count; i++)
        same = strcmp(groups->later[i].codec, others->later[i].codec) == 0 &&
               groups->later[i].kv_head_count == others->later[i].kv_head_count &&
               groups->later[i].chunk_bytes == others->later[i].chunk_bytes &&
               groups->later[i].tail_bytes == others->later[i].tail_bytes;
    return same;
}

struct store_parts store_page_parts(const struct store_layout *layout) {
    const bool mixed = layout->fractions.layer_count > 0;
    if (layers_differ(layout)) return (struct store_parts){0};
    const size_t rows = mixed ? layout->tail_bytes : layout->tail_bytes == 0 ? layout->chunk_bytes : 0;
    struct store_parts parts = {.bytes = IO_ALIGNMENT};
    while (rows > parts.bytes * STORE_PARTS_MAX) parts.bytes *= 2;
    parts.count = (rows + parts.bytes - 1) / parts.bytes;
    return parts.count > 1 ? parts : (struct store_parts){0};
}

static void parts_init(struct geometry *geometry, const struct store_layout *layout) {
    const struct store_parts parts = store_page_parts(layout);
    geometry->part_bytes = parts.bytes;
    geometry->part_count = parts.count;
    geometry->page_sum_bytes = sizeof(struct checksum) + parts.count * sizeof(struct part_sum);
}

void geometry_without_parts(struct geometry *geometry) {
    geometry->part_bytes = geometry->part_count = 0;
    geometry->page_sum_bytes = sizeof(struct checksum);
}

/* Bytes of pages, `quantized` of which are in 4 bits. */
static uint64_t mixed_bytes(const struct geometry *geometry, uint64_t pages, uint64_t quantized) {
    return quantized * geometry->page_bytes + (pages - quantized) * geometry->tail_page_bytes;
}

/* Of the only group that there is, where pages are mixed. */
static size_t mixed_heads(const struct geometry *geometry) { return geometry->groups[0].kv_head_count; }

static uint64_t segment_bytes(const struct geometry *geometry, const struct geometry_span *span) {
    return mixed_bytes(geometry, geometry->chunk_pages * SEGMENT_CHUNKS,
                       mixed_heads(geometry) * span->quantized_before[geometry->layer_count]);
}

/* Where each span begins: behind the segments of the one before. */
static void spans_init(struct geometry *geometry) {
    const struct page_fractions *fractions = &geometry->fractions;
    for (size_t s = 0; s <= fractions->later_count; s++) {
        struct geometry_span *span = &geometry->spans[s];
        const uint8_t *sixteenths = s > 0 ? fractions->later[s - 1].sixteenths : fractions->sixteenths;
        for (size_t i = 0; i < fractions->layer_count; i++)
            span->quantized_before[i + 1] = (uint16_t)(span->quantized_before[i] + sixteenths[i]);
        if (s == 0) continue;
        const struct geometry_span *before = span - 1;
        span->chunk_first = fractions->later[s - 1].chunk_first;
        span->offset = before->offset +
                       (span->chunk_first - before->chunk_first) / SEGMENT_CHUNKS * segment_bytes(geometry, before);
    }
    for (size_t i = 0; i < fractions->layer_count; i++)
        geometry->kept_before[i + 1] =
            geometry->kept_before[i] +
            (uint32_t)page_fractions_kept(fractions, i, mixed_heads(geometry), mixed_heads(geometry));
}

static struct geometry_group group_of(uint32_t kv_head_count, uint32_t chunk_bytes, uint32_t tail_bytes) {
    const size_t rows = rows_bytes(chunk_bytes, tail_bytes);
    return (struct geometry_group){.kv_head_count = kv_head_count,
                                   .chunk_bytes = chunk_bytes,
                                   .page_bytes = align_up(chunk_bytes, IO_ALIGNMENT),
                                   .tail_chunk_bytes = rows,
                                   .tail_page_bytes = align_up(rows, IO_ALIGNMENT)};
}

size_t layout_lanes(const struct store_layout *layout) {
    const struct store_groups *groups = &layout->groups;
    size_t lanes = 0;
    if (!layers_differ(layout)) return (size_t)layout->layer_count * layout->kv_head_count;
    for (size_t i = 0; i < layout->layer_count; i++) {
        const uint8_t group = groups->of_layer[i];
        if (group == STORE_GROUP_NONE) continue;
        lanes += group > 0 ? groups->later[group - 1].kv_head_count : layout->kv_head_count;
    }
    return lanes;
}

void geometry_init(struct geometry *geometry, const struct store_layout *layout) {
    const struct store_groups *groups = &layout->groups;
    *geometry = (struct geometry){.layer_count = layout->layer_count,
                                  .group_count = (size_t)groups->later_count + 1 + (layout->state_bytes > 0),
                                  .state_bytes = layout->state_bytes,
                                  .windows = layout->windows,
                                  .chunk_pages = layout_lanes(layout),
                                  .page_bytes = store_page_bytes(layout),
                                  .key_index_bytes = layout->key_index_bytes,
                                  .tail_page_bytes = store_tail_bytes(layout),
                                  .fractions = layout->fractions};
    geometry->groups[0] = group_of(layout->kv_head_count, layout->chunk_bytes, layout->tail_bytes);
    for (size_t i = 0; i < groups->later_count; i++)
        geometry->groups[i + 1] =
            group_of(groups->later[i].kv_head_count, groups->later[i].chunk_bytes, groups->later[i].tail_bytes);
    memcpy(geometry->group_of, groups->of_layer, sizeof geometry->group_of);
    geometry->quantizes = layout->tail_bytes != 0;
    parts_init(geometry, layout);
    _Static_assert((int)SEGMENT_CHUNKS == (int)PAGE_FRACTION_WHOLE, "a layer's share of a segment is as many pages");
    if (layout->fractions.layer_count > 0) spans_init(geometry);
}

const struct geometry_group *geometry_group(const struct geometry *geometry, size_t layer) {
    return &geometry->groups[geometry->group_count > 1 ? geometry->group_of[layer] : 0];
}

size_t geometry_heads(const struct geometry *geometry, size_t layer) {
    return geometry_group(geometry, layer)->kv_head_count;
}

size_t geometry_heads_max(const struct geometry *geometry) {
    size_t heads = 0;
    for (size_t i = 0; i < geometry->group_count; i++) heads = max_size(heads, geometry->groups[i].kv_head_count);
    return heads;
}

static bool slides(const struct geometry *geometry, size_t layer) {
    return geometry->windows.tokens > 0 && geometry->windows.slides[layer];
}

size_t geometry_key_index_heads(const struct geometry *geometry, size_t layer) {
    return slides(geometry, layer) ? 0 : geometry_heads(geometry, layer);
}

bool geometry_has_positions(const struct geometry *geometry) {
    return geometry->state_bytes > 0 || geometry->windows.tokens > 0;
}

static bool is_seen(const struct geometry *geometry, const struct document_states *positions, uint64_t chunk) {
    for (size_t i = 0; i < positions->count; i++)
        if (kv_window_sees(geometry->windows.tokens, positions->list[i].position, chunk)) return true;
    return false;
}

bool page_is_kept(const struct geometry *geometry, const struct document_states *positions, size_t layer,
                  uint64_t chunk) {
    return !slides(geometry, layer) || is_seen(geometry, positions, chunk);
}

uint64_t absent_bytes(const struct geometry *geometry, const struct document_states *positions, uint64_t chunks) {
    uint64_t bytes = 0;
    for (uint64_t chunk = 0; geometry->windows.tokens > 0 && chunk < chunks; chunk++)
        for (size_t layer = 0; layer < geometry->layer_count && !is_seen(geometry, positions, chunk); layer++)
            for (size_t head = 0; slides(geometry, layer) && head < geometry_heads(geometry, layer); head++)
                bytes += page_padded_bytes(geometry, layer, head, chunk);
    return bytes;
}

/* What the layers before one have, of layers that differ. */
struct layers_before {
    size_t lanes;
    uint64_t page_bytes, tail_bytes; /* of a page of each lane; of a tail */
};

static struct layers_before layers_before(const struct geometry *geometry, size_t layer) {
    struct layers_before before = {0};
    for (size_t i = 0; i < layer; i++) {
        const struct geometry_group *group = geometry_group(geometry, i);
        before.lanes += group->kv_head_count;
        before.page_bytes += (uint64_t)group->kv_head_count * group->page_bytes;
        before.tail_bytes += (uint64_t)group->kv_head_count * group->tail_page_bytes;
    }
    return before;
}

size_t geometry_lane(const struct geometry *geometry, size_t layer, size_t kv_head) {
    return (geometry->group_count > 1 ? layers_before(geometry, layer).lanes
                                      : layer * geometry->groups[0].kv_head_count) +
           kv_head;
}

size_t geometry_layer_of(const struct geometry *geometry, size_t lane) {
    size_t layer = 0;
    if (geometry->group_count == 1) return lane / geometry->groups[0].kv_head_count;
    for (size_t end = geometry_heads(geometry, 0); end <= lane; end += geometry_heads(geometry, layer)) layer++;
    return layer;
}

uint64_t geometry_tails_bytes(const struct geometry *geometry) {
    return geometry->group_count > 1 ? layers_before(geometry, geometry->layer_count).tail_bytes
                                     : (uint64_t)geometry->chunk_pages * geometry->tail_page_bytes;
}

size_t state_place_bytes(const struct geometry *geometry) { return align_up(geometry->state_bytes, IO_ALIGNMENT); }

uint64_t state_offset(const struct geometry *geometry, size_t place) {
    return (uint64_t)place * state_place_bytes(geometry);
}

static uint64_t states_end(const struct geometry *geometry) { return state_offset(geometry, STATE_PLACES); }

uint64_t chunks_full(uint64_t token_count) { return token_count / KV_CHUNK_TOKENS; }

/* The limits of store.h (2^20 pages of a chunk, 2^22 chunks, 2^24 bytes) do not keep all of this below 2^63 where
 * several are reached at once; document_bytes_max, which is asked first, refuses what is larger. */

size_t page_index(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    return (size_t)chunk * geometry->chunk_pages + geometry_lane(geometry, layer, kv_head);
}

static uint64_t entry_number(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    uint64_t column = chunk / SEGMENT_CHUNKS * geometry->chunk_pages + geometry_lane(geometry, layer, kv_head);
    return column * SEGMENT_CHUNKS + chunk % SEGMENT_CHUNKS;
}

static bool is_mixed_rows(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    return geometry->fractions.layer_count > 0 &&
           !page_fractions_is_quantized(&geometry->fractions, layer, kv_head, mixed_heads(geometry), chunk);
}

bool page_is_rows(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    return is_mixed_rows(geometry, layer, kv_head, chunk) || !geometry->quantizes;
}

size_t page_chunk_bytes(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    const struct geometry_group *group = geometry_group(geometry, layer);
    return is_mixed_rows(geometry, layer, kv_head, chunk) ? group->tail_chunk_bytes : group->chunk_bytes;
}

size_t page_padded_bytes(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    const struct geometry_group *group = geometry_group(geometry, layer);
    return is_mixed_rows(geometry, layer, kv_head, chunk) ? group->tail_page_bytes : group->page_bytes;
}

size_t page_padded_max(const struct geometry *geometry) {
    return geometry->fractions.layer_count > 0 ? max_size(geometry->page_bytes, geometry->tail_page_bytes)
                                               : geometry->page_bytes;
}

/* First pages before this one that are rows where their fractions say 4 bits. */
static uint64_t kept_before(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    if (chunk >= SEGMENT_CHUNKS) return geometry->kept_before[geometry->layer_count];
    return geometry->kept_before[layer] +
           page_fractions_kept(&geometry->fractions, layer, kv_head + (chunk > 0), mixed_heads(geometry));
}

/* From the start of the segments: those before, then in this one the layers, heads and chunks before. */
static uint64_t mixed_offset(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    const struct geometry_span *span = &geometry->spans[geometry->fractions.later_count];
    while (span->chunk_first > chunk) span--;
    const uint64_t heads = mixed_heads(geometry), here = chunk % SEGMENT_CHUNKS, before = span->quantized_before[layer],
                   fraction = span->quantized_before[layer + 1] - before;
    const uint64_t quantized = page_span_before((unsigned)fraction, kv_head, heads, here);
    return span->offset + (chunk - span->chunk_first) / SEGMENT_CHUNKS * segment_bytes(geometry, span) +
           mixed_bytes(geometry, layer * heads * SEGMENT_CHUNKS, heads * before) +
           mixed_bytes(geometry, kv_head * SEGMENT_CHUNKS, kv_head * fraction) +
           mixed_bytes(geometry, here, quantized) +
           kept_before(geometry, layer, kv_head, chunk) * (geometry->tail_page_bytes - geometry->page_bytes);
}

/* The same of layers that differ. */
static uint64_t grouped_offset(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    const uint64_t here = kv_head * SEGMENT_CHUNKS + chunk % SEGMENT_CHUNKS;
    return chunk / SEGMENT_CHUNKS * SEGMENT_CHUNKS * layers_before(geometry, geometry->layer_count).page_bytes +
           SEGMENT_CHUNKS * layers_before(geometry, layer).page_bytes +
           here * geometry_group(geometry, layer)->page_bytes;
}

uint64_t page_offset(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    const uint64_t tails = states_end(geometry) + 2 * geometry_tails_bytes(geometry);
    if (geometry->group_count > 1) return tails + grouped_offset(geometry, layer, kv_head, chunk);
    return tails + (geometry->fractions.layer_count > 0
                        ? mixed_offset(geometry, layer, kv_head, chunk)
                        : entry_number(geometry, layer, kv_head, chunk) * geometry->page_bytes);
}

uint64_t key_index_offset(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    return entry_number(geometry, layer, kv_head, chunk) * geometry->key_index_bytes;
}

uint64_t tail_offset(const struct geometry *geometry, uint64_t generation, size_t layer, size_t kv_head) {
    const size_t bytes = geometry_group(geometry, layer)->tail_page_bytes;
    return states_end(geometry) + (generation & 1) * geometry_tails_bytes(geometry) +
           (geometry->group_count > 1 ? layers_before(geometry, layer).tail_bytes + kv_head * bytes
                                      : geometry_lane(geometry, layer, kv_head) * bytes);
}

size_t tail_bytes(const struct geometry *geometry, size_t layer, uint64_t token_count) {
    size_t rows = token_count % KV_CHUNK_TOKENS;
    return (rows + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS *
           (geometry_group(geometry, layer)->tail_chunk_bytes / KV_CHUNK_BLOCKS);
}

/* Behind the last one that has pages, or key index. */
static size_t layers_end(const struct geometry *geometry,
                         size_t (*heads)(const struct geometry *geometry, size_t layer)) {
    size_t layer = geometry->layer_count;
    while (layer > 0 && heads(geometry, layer - 1) == 0) layer--;
    return layer;
}

uint64_t pages_end(const struct geometry *geometry, uint64_t token_count, uint64_t generation) {
    uint64_t chunks = chunks_full(token_count);
    size_t layer = layers_end(geometry, geometry_heads) - 1, head = geometry_heads(geometry, layer) - 1;
    if (chunks > 0)
        return page_offset(geometry, layer, head, chunks - 1) + page_padded_bytes(geometry, layer, head, chunks - 1);
    if (token_count == 0) return 0;
    return tail_offset(geometry, generation, layer, head) +
           align_up(tail_bytes(geometry, layer, token_count), IO_ALIGNMENT);
}

uint64_t key_index_end(const struct geometry *geometry, uint64_t token_count) {
    uint64_t chunks = chunks_full(token_count);
    const size_t end = layers_end(geometry, geometry_key_index_heads);
    if (chunks == 0 || geometry->key_index_bytes == 0 || end == 0) return 0;
    return key_index_offset(geometry, end - 1, geometry_heads(geometry, end - 1) - 1, chunks - 1) +
           geometry->key_index_bytes;
}

/* Bytes of all pages of so many chunks, which fit when those of the larger form do. */
static bool pages_bytes(const struct geometry *geometry, uint64_t chunks, uint64_t *bytes) {
    if (!checked_multiply(chunks, geometry->chunk_pages * page_padded_max(geometry), bytes)) return false;
    if (geometry->group_count > 1) *bytes = chunks * layers_before(geometry, geometry->layer_count).page_bytes;
    uint64_t quantized = 0, heads = mixed_heads(geometry);
    for (size_t i = 0; i < geometry->fractions.layer_count; i++)
        quantized += page_fractions_of_layer(&geometry->fractions, i, heads, chunks);
    if (geometry->fractions.layer_count > 0) *bytes = mixed_bytes(geometry, chunks * geometry->chunk_pages, quantized);
    return true;
}

uint64_t document_bytes_max(const struct geometry *geometry, uint64_t token_count) {
    enum { ROW_RESERVE = 16384, FILE_RESERVE = 65536 }; /* of the catalog's trees, of the file system's own blocks */
    uint64_t chunks = chunks_full(token_count), pages, tails, bytes, key_index, table, sum;
    bool tail = token_count % KV_CHUNK_TOKENS != 0;
    /* The catalog: its checksums, 4 bytes per token, an eighth more for its pages that are not full. */
    bool fits = checked_add(chunks, tail ? 2 : 0, &sum) && checked_multiply(sum, geometry->chunk_pages, &pages) &&
                checked_multiply(geometry_tails_bytes(geometry), tail ? 2 : 0, &tails) &&
                pages_bytes(geometry, chunks, &bytes) && checked_add(bytes, tails, &bytes) &&
                checked_add(bytes, states_end(geometry), &bytes) &&
                checked_multiply(pages, geometry->key_index_bytes, &key_index) &&
                checked_multiply(pages, geometry->page_sum_bytes + sizeof(struct checksum), &table) &&
                checked_add(bytes, key_index, &sum) && checked_add(sum, table + table / 8, &sum) &&
                checked_add(sum, token_count * 5 + ROW_RESERVE + FILE_RESERVE, &sum);
    return fits && sum < UINT64_C(1) << 62 ? sum : UINT64_MAX;
}

uint64_t window_pages_bytes(const struct geometry *geometry, uint64_t chunks) {
    return absent_bytes(geometry, &(struct document_states){.count = 0}, chunks);
}

uint64_t window_room_bytes(const struct geometry *geometry, uint64_t chunks) {
    const uint64_t some = 2 * (geometry->windows.tokens / KV_CHUNK_TOKENS + 2); /* of two windows */
    return window_pages_bytes(geometry, chunks < some ? chunks : some);
}

uint64_t document_bytes_reserved(const struct geometry *geometry, uint64_t token_count) {
    const uint64_t all = document_bytes_max(geometry, token_count), chunks = chunks_full(token_count);
    if (all == UINT64_MAX) return all;
    return all - window_pages_bytes(geometry, chunks) + window_room_bytes(geometry, chunks);
}
