#include "cli/foreign_option.h"

#include <stddef.h>
#include <string.h>

static const struct {
    const char *names; /* without dashes, each between bars */
    const char *hint;
} foreign_options[] = {
    {"|read-limit|replay|", "it is an option of loam-lab, which has this command, too"},
    {"|hf|hfr|hf-repo|hff|hf-file|hft|hf-token|hfrv|mu|model-url|dr|docker-repo|offline|",
     "'loam pull hf:ORG/REPO:FILE' brings a model, and -m takes its name"},
    {"|sm|split-mode|ts|tensor-split|mg|main-gpu|ot|override-tensor|cmoe|cpu-moe|ncmoe|n-cpu-moe|rpc|",
     "a model runs on one device as a whole: --device"},
    {"|nkvo|no-kv-offload|kvo|kv-offload|", "--kv-device and --kv-host say where K and V lie"},
    {"|fa|flash-attn|", "attention is always computed so; leave it out"},
    {"|mlock|", "leave it out, or bound what RAM holds by --weights-host"},
    {"|no-mmap|mmap|dio|direct-io|no-direct-io|",
     "the file is mapped; leave it out, or bound what RAM holds by --weights-host"},
    {"|rope-scale|rope-freq-base|rope-freq-scale|yarn-orig-ctx|yarn-ext-factor|yarn-attn-factor|"
     "yarn-beta-slow|yarn-beta-fast|",
     "the model's file says how its positions are scaled; --rope-scaling yarn with -c stretches others"},
    {"|grammar|grammar-file|", "the form of an answer is a JSON schema: --json-schema"},
    {"|cnv|conversation|i|interactive|if|interactive-first|", "'loam chat' is for conversations"},
    {"|st|single-turn|", "'loam run' is one turn"},
    {"|jinja|in-prefix|in-suffix|in-prefix-bos|", "the model's own template is used; leave it out"},
    {"|chat-template-file|", "the model's own template is used, or --chat-template NAME"},
    {"|sysf|system-prompt-file|", "-sys \"$(cat FILE)\""},
    {"|e|escape|no-escape|", "-p is taken as it is: a shell's $'...' has escapes"},
    {"|reasoning-format|reasoning-budget|", "--reasoning off turns thoughts off"},
    {"|list-devices|", "'loam devices' lists them"},
    {"|fit|fitt|fit-target|fitc|fit-ctx|", "'loam plan' says what fits; leave it out"},
    {"|context-shift|no-context-shift|", "an answer ends where the context does; leave it out"},
    {"|kvu|kv-unified|swa-full|dt|defrag-thold|cache-reuse|", "K and V need no such help; leave it out"},
    {"|metrics|props|slots|no-slots|webui|no-webui|", "the server has /metrics, /props and its page; leave it out"},
    {"|ssl-key-file|ssl-cert-file|api-prefix|", "TLS and paths are a proxy's work"},
    {"|override-kv|check-tensors|", "the file is used as it is; what is damaged is refused"},
    {"|co|color|log-colors|simple-io|perf|warmup|op-offload|no-op-offload|repack|nr|no-repack|timeout|"
     "threads-http|",
     "leave it out"},
    {"|cb|cont-batching|", "requests are always answered together; leave it out"},
    {"|prompt-cache|prompt-cache-all|prompt-cache-ro|slot-save-path|cram|cache-ram|ctxcp|ctx-checkpoints|",
     "--kv-disk DIR saves what was read, and finds it again"},
    {"|tb|threads-batch|", "-t is for prompts and answers"},
    {"|numa|C|cpu-range|cpu-strict|prio|poll|", "the system places threads: taskset, nice"},
    {"|mirostat|mirostat-lr|mirostat-ent|typical|typ|dynatemp-range|dynatemp-exp|xtc-probability|xtc-threshold|"
     "dry-multiplier|dry-base|dry-allowed-length|top-nsigma|samplers|sampling-seq|sampler-seq|bs|backend-sampling|",
     "answers are sampled by --temp, --top-k, --top-p, --min-p and the penalties"},
    {"|md|model-draft|draft|draft-max|draft-min|spec-type|lcs|lookup-cache-static|lcd|lookup-cache-dynamic|",
     "there are no draft models"},
    {"|lora|lora-scaled|control-vector|", "an adapter must be part of the model's file"},
    {"|mm|mmproj|mmu|mmproj-url|no-mmproj|image|audio|", "loam reads text alone"},
    {"|embedding|embeddings|rerank|reranking|pooling|", "loam gives answers, no embeddings"},
    {"|log-disable|no-perf|no-display-prompt|", "-q is for a quiet standard error"},
    {"|log-file|log-verbosity|lv|", "standard error has all there is to log"},
};

const char *foreign_option_hint(const char *word) {
    const char *name = word + strspn(word, "-");
    const size_t length = strlen(name);
    for (size_t i = 0; i < sizeof foreign_options / sizeof *foreign_options && length > 0; i++)
        for (const char *at = foreign_options[i].names; (at = strstr(at, name)) != NULL; at++)
            if (at[-1] == '|' && at[length] == '|') return foreign_options[i].hint;
    return NULL;
}
