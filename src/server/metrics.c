/* /metrics: what the service counts, for Prometheus: loam's own names, llama-server's, and by option vLLM's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/routes.h"

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE };

struct page {
    struct text text;
    char label[160]; /* of vLLM's names: {model_name="..."}; "": none */
};

static void put_head(struct page *page, const char *name, const char *type, const char *help) {
    text_format(&page->text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_metric(struct page *page, enum metric_kind kind, const char *name, const char *help, double value) {
    put_head(page, name, kind == METRIC_COUNTER ? "counter" : "gauge", help);
    text_format(&page->text, "%s%s %.17g\n", name, page->label, value);
}

/* One label more than page->label; label has no braces. */
static void put_labels(struct page *page, const char *own) {
    const size_t length = strlen(page->label);
    if (length > 0)
        text_format(&page->text, "{%.*s,%s}", (int)(length - 2), page->label + 1, own);
    else
        text_format(&page->text, "{%s}", own);
}

static void put_histogram(struct page *page, const char *name, const char *help, struct histogram *histogram) {
    uint64_t count = 0;
    char own[40], bucket[96];
    put_head(page, name, "histogram", help);
    snprintf(bucket, sizeof bucket, "%s_bucket", name);
    for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
        count += atomic_load(&histogram->counts[i]);
        snprintf(own, sizeof own, "le=\"%g\"", histogram_bounds[i]);
        text_format(&page->text, "%s", bucket);
        put_labels(page, own);
        text_format(&page->text, " %llu\n", (unsigned long long)count);
    }
    count += atomic_load(&histogram->counts[HISTOGRAM_BUCKETS]);
    text_format(&page->text, "%s", bucket);
    put_labels(page, "le=\"+Inf\"");
    text_format(&page->text, " %llu\n", (unsigned long long)count);
    text_format(&page->text, "%s_sum%s %.9g\n", name, page->label, (double)atomic_load(&histogram->sum_ns) * 1e-9);
    text_format(&page->text, "%s_count%s %llu\n", name, page->label, (unsigned long long)count);
}

/* ---- loam's names ---- */

static void put_counters(struct page *page, const struct counter_table *table, const void *values) {
    char name[96];
    for (size_t i = 0; i < table->count; i++) {
        const struct counter *row = &table->rows[i];
        const bool is_total = row->kind == COUNTER_TOTAL;
        snprintf(name, sizeof name, "loam_%s%s%s", table->prefix, row->name, is_total ? "_total" : "");
        put_metric(page, is_total ? METRIC_COUNTER : METRIC_GAUGE, name, row->help, counter_value(row, values));
    }
}

static void put_own(struct page *page, const struct service_statistics *s) {
    const struct kv_tier_statistics *t = &s->tiers;
    put_counters(page, &service_counters, s);
    put_counters(page, &select_counters, &s->select);
    put_counters(page, &kv_tier_counters, t);
    if (s->weights.weight_bytes > 0) put_counters(page, &weight_counters, &s->weights);
    if (s->device.launches > 0) {
        put_counters(page, &device_counters, &s->device);
        put_counters(page, &fetch_counters, &s->fetched);
    }
    put_metric(page, METRIC_GAUGE, "loam_kept_ratio", "Attended of visible rows since the server began.",
               s->select.visible > 0 ? (double)s->select.kept / (double)s->select.visible : 1);
    put_metric(page, METRIC_GAUGE, "loam_kv_hit_ratio", "Hits of all chunks attended to.",
               t->hits + t->misses > 0 ? (double)t->hits / (double)(t->hits + t->misses) : 1);
    put_head(page, "loam_requests_done_total", "counter", "Requests that ended, by why.");
    for (size_t i = STOP_END; i < SERVICE_STOPS; i++)
        text_format(&page->text, "loam_requests_done_total{reason=\"%s\"} %llu\n",
                    stop_reason_name((enum stop_reason)i), (unsigned long long)s->done[i]);
}

static void put_latencies(struct page *page, struct latencies *latencies) {
    put_histogram(page, "loam_queue_seconds", "Until a request has a slot.", &latencies->queue);
    put_histogram(page, "loam_time_to_first_token_seconds", "From the request to its first token.",
                  &latencies->first_token);
    put_histogram(page, "loam_time_between_tokens_seconds", "Of a request, on average.", &latencies->between_tokens);
    put_histogram(page, "loam_request_seconds", "From the request to its end.", &latencies->whole);
}

/* ---- others' names ---- */

static void put_llama(struct page *page, const struct service_statistics *s, struct latencies *latencies) {
    put_metric(page, METRIC_COUNTER, "llamacpp:prompt_tokens_total", "Number of prompt tokens processed.",
               (double)s->tokens.prefill);
    put_metric(page, METRIC_COUNTER, "llamacpp:prompt_seconds_total", "Prompt process time.", s->prefill_seconds);
    put_metric(page, METRIC_COUNTER, "llamacpp:tokens_predicted_total", "Number of generation tokens processed.",
               (double)s->tokens.answer);
    put_metric(page, METRIC_COUNTER, "llamacpp:tokens_predicted_seconds_total", "Predict process time.",
               s->decode_seconds);
    put_metric(page, METRIC_COUNTER, "llamacpp:n_decode_total", "Total number of decode calls.",
               (double)(s->steps + s->slices));
    put_metric(page, METRIC_GAUGE, "llamacpp:n_tokens_max", "Largest observed number of tokens of a request.",
               (double)atomic_load(&latencies->tokens_max));
    put_metric(page, METRIC_GAUGE, "llamacpp:n_busy_slots_per_decode", "Average number of sequences per step.",
               s->steps > 0 ? (double)s->tokens.answer / (double)s->steps : 0);
    put_metric(page, METRIC_GAUGE, "llamacpp:prompt_tokens_seconds", "Prompt throughput in tokens a second.",
               s->levels.prefill_rate);
    put_metric(page, METRIC_GAUGE, "llamacpp:predicted_tokens_seconds", "Generation throughput in tokens a second.",
               s->levels.decode_rate);
    put_metric(page, METRIC_GAUGE, "llamacpp:requests_processing", "Number of requests processing.",
               (double)(s->levels.prefilling + s->levels.decoding + s->levels.paused));
    put_metric(page, METRIC_GAUGE, "llamacpp:requests_deferred", "Number of requests deferred.",
               (double)s->levels.queued);
}

static void put_vllm(struct page *page, const struct service_statistics *s, const struct server *server,
                     struct latencies *latencies) {
    const struct server_model *model = &server->model;
    char id[96] = "";
    size_t length = 0;
    for (const char *c = model->id; *c != '\0' && length + 1 < sizeof id; c++) /* what a label may hold */
        id[length++] = *c == '"' || *c == '\\' || (unsigned char)*c < ' ' ? '_' : *c;
    id[length] = '\0';
    snprintf(page->label, sizeof page->label, "{model_name=\"%s\"}", id);
    const double capacity = (double)service_context_size(model->service) * (double)service_parallel(model->service);
    put_metric(page, METRIC_GAUGE, "vllm:num_requests_running", "Requests with a slot.",
               (double)(s->levels.prefilling + s->levels.decoding + s->levels.paused));
    put_metric(page, METRIC_GAUGE, "vllm:num_requests_waiting", "Requests that wait for a slot.",
               (double)s->levels.queued);
    put_metric(page, METRIC_GAUGE, "vllm:kv_cache_usage_perc", "Tokens in memory, of what all slots can have.",
               (double)(s->levels.running_tokens + s->levels.resident_tokens) / capacity);
    put_metric(page, METRIC_COUNTER, "vllm:prompt_tokens_total", "Tokens of prompts.", (double)s->tokens.prompt);
    put_metric(page, METRIC_COUNTER, "vllm:generation_tokens_total", "Tokens sampled.", (double)s->tokens.answer);
    put_metric(page, METRIC_COUNTER, "vllm:num_preemptions_total", "Preemptions.", (double)s->preemptions);
    put_metric(page, METRIC_COUNTER, "vllm:prefix_cache_queries_total", "Tokens of prompts.", (double)s->tokens.prompt);
    put_metric(page, METRIC_COUNTER, "vllm:prefix_cache_hits_total", "Tokens of prompts that were reused.",
               (double)s->tokens.reused);
    put_head(page, "vllm:request_success_total", "counter", "Requests that ended, by why.");
    const uint64_t stopped = s->done[STOP_END] + s->done[STOP_STRING];
    const uint64_t cut = s->done[STOP_LENGTH] + s->done[STOP_CONTEXT] + s->done[STOP_LOOP];
    text_format(&page->text, "vllm:request_success_total{finished_reason=\"stop\",model_name=\"%s\"} %llu\n", id,
                (unsigned long long)stopped);
    text_format(&page->text, "vllm:request_success_total{finished_reason=\"length\",model_name=\"%s\"} %llu\n", id,
                (unsigned long long)cut);
    put_histogram(page, "vllm:time_to_first_token_seconds", "Time to first token.", &latencies->first_token);
    put_histogram(page, "vllm:time_per_output_token_seconds", "Time between tokens.", &latencies->between_tokens);
    put_histogram(page, "vllm:request_queue_time_seconds", "Time in the queue.", &latencies->queue);
    put_histogram(page, "vllm:e2e_request_latency_seconds", "From the request to its end.", &latencies->whole);
    page->label[0] = '\0';
}

void metrics_route(struct server *server, struct exchange *exchange) {
    struct page page = {.label = ""};
    const struct service_statistics statistics = service_get_statistics(server->model.service);
    put_own(&page, &statistics);
    put_latencies(&page, &server->latencies);
    put_llama(&page, &statistics, &server->latencies);
    if (server->options.has_vllm_metrics) put_vllm(&page, &statistics, server, &server->latencies);
    if (page.text.failed) {
        text_deinit(&page.text);
        exchange_refuse(exchange, 503, "no memory for the metrics");
        return;
    }
    exchange_reply(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", page.text.bytes, page.text.length);
}
