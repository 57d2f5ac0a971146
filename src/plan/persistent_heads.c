#include "plan/persistent_heads.h"

#include <math.h>

#include "base/assert.h"

double persistent_compute_seconds(const struct persistent_times *times) {
    return times->layer + times->choose + (double)times->chunks * times->attend / (double)times->thread_count;
}

size_t persistent_prefetchable(double compute_seconds, double bytes_per_second, double head_bytes) {
    const double heads = compute_seconds * bytes_per_second / head_bytes;
    return heads >= 1 ? (size_t)fmin(heads, (double)UINT32_MAX) : 0; /* no number: none */
}

double persistent_difficulty(const struct persistent_question *question, size_t layer, size_t kv_head) {
    enum { GROUP_MAX = 64 };
    const size_t group = question->head_count / persistent_heads_of(question, layer),
                 first = layer * question->head_count + kv_head * group;
    double similarities[GROUP_MAX];
    float importance[GROUP_MAX];
    ASSERT(group <= GROUP_MAX);
    for (size_t i = 0; i < group; i++) {
        similarities[i] = (double)question->similarity[first + i];
        importance[i] = question->importance != NULL ? question->importance[first + i] : 1;
    }
    const double similarity = label_similarity(question->options->aggregate, similarities, importance, group);
    return question->thresholds[persistent_lane(question, layer, kv_head)] - (similarity - question->options->epsilon);
}

size_t persistent_layer(const struct persistent_question *question, uint32_t lane) {
    return question->groups != NULL ? kv_groups_layer(question->groups, lane) : lane / question->kv_head_count;
}

static double lane_difficulty(const struct persistent_question *question, uint32_t lane) {
    const size_t layer = persistent_layer(question, lane);
    return persistent_difficulty(question, layer, lane - persistent_lane(question, layer, 0));
}

/* Puts a lane where its difficulty has it among those of [first, count), which fall; of equals the later one behind. */
static void insert(const struct persistent_question *question, uint32_t *lanes, size_t first, size_t count,
                   uint32_t lane) {
    const double difficulty = lane_difficulty(question, lane);
    size_t i = count;
    for (; i > first && lane_difficulty(question, lanes[i - 1]) < difficulty; i--) lanes[i] = lanes[i - 1];
    lanes[i] = lane;
}

size_t persistent_choose(const struct persistent_question *question, uint32_t *lanes) {
    size_t count = 0;
    for (size_t layer = question->layer_first; layer < question->layer_count; layer++) {
        const size_t before = count;
        for (size_t head = 0; head < persistent_heads_of(question, layer); head++)
            if (persistent_difficulty(question, layer, head) > 0)
                insert(question, lanes, before, count++, (uint32_t)persistent_lane(question, layer, head));
        /* The easiest of them are prefetched. */
        count -= count - before < question->prefetchable ? count - before : question->prefetchable;
    }
    for (size_t i = 1; i < count; i++) insert(question, lanes, 0, i, lanes[i]);
    return count;
}
