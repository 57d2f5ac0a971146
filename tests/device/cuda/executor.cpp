/* executor: threads as fibres.  See executor.h.
 *
 * A machine holds one block at a time: its fibres, its shared memory, what its warps wait for.  Where a fibre waits for
 * others or is done, any that can run goes on; the scheduler does where none can.  A fibre that comes last to what its
 * warp does together does it for all 32: their registers lie on stacks that it can reach. */
#include "device/cuda/executor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include <algorithm>
#include <atomic>
#include <deque>
#include <vector>

#include "device/cuda/dialect_sm90a.h"
#include "device/cuda/executor_context.h"

#if defined(LOAM_EXECUTOR_TSAN)
extern "C" {
void *__tsan_create_fiber(unsigned flags);
void *__tsan_get_current_fiber(void);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *address);
void __tsan_release(void *address);
}
enum { STACKS_ARE_SHARED = 0 }; /* what two threads write would be a race */
static void *fiber_create() { return __tsan_create_fiber(0); }
static void *fiber_current() { return __tsan_get_current_fiber(); }
static void fiber_enter(void *fiber) { __tsan_switch_to_fiber(fiber, 1); } /* 1: orders nothing */
static void acquire(void *what) { __tsan_acquire(what); }
static void release(void *what) { __tsan_release(what); }
#else
enum { STACKS_ARE_SHARED = 1 };
static void *fiber_create() { return nullptr; }
static void *fiber_current() { return nullptr; }
static void fiber_enter(void *) {}
static void acquire(void *) {}
static void release(void *) {}
#endif

/* Stacks lie at odd distances of pages and of cache lines: fibres that take turns else push each other out of the same
 * few sets of the cache and of the table of pages. */
enum { THREADS_MAX = 1024, STACK_BYTES = 33 * 4096 + 9 * 64, SHARED_MAX = 227 * 1024, DEPTH_MAX = 16 };

struct pending {
    char *to;
    const char *from; /* NULL: zeros */
    uint32_t group;
};

struct unseen { /* a store16_async, or a copy that was waited for, that no async_fence is behind */
    char *to;
    u32x4 value;
};

struct fibre {
    context *stack; /* NULL: it has not begun */
    void *tsan;
    bool is_done;
    executor_site waits; /* where, if it does */
    std::vector<pending> copies;
    uint32_t group; /* of the next copies */
    std::vector<unseen> stores;
    uint32_t issued, committed, waited; /* products of its warpgroup, and groups of them */
    bool is_fenced;
};

struct mbarrier {
    char *at;
    uint32_t arrivals, pending, phase, by, round; /* who made it, and how often the block had met then */
    int64_t bytes;                                /* expected less come */
    bool is_published;
    executor_site site;
};

struct tile_copy {
    executor_tensor tensor;
    char *to, *barrier;
    int32_t column, row;
};

struct product {
    executor_operands operands;
    uint32_t group, arrived;
    executor_site site;
    float *d[128];
    const uint32_t *fragments[128]; /* of a, where it is in registers */
    std::vector<float> a, b; /* [64][16], [16][columns]; empty: they were not read yet */
};

struct warpgroup {
    std::deque<product> products; /* under way */
    uint32_t done;                /* those before them */
    uint32_t arrived, registers;
    executor_site site;
};

struct warp {
    uint32_t arrived;
    int kind;
    executor_site site;
    uint32_t value[32], operand[32], result[32];
    void *target[32];
    const void *source[32];
};

enum { MATRIX_LOAD = 100, MATRIX_LOAD_TURNED, MATRIX_HALVES, MATRIX_BYTES };

struct machine {
    char *stacks, *shared_end, *shared; /* shared: of this launch, ending at a page that faults */
    size_t shared_bytes;
    fibre *fibres; /* [THREADS_MAX] */
    context contexts[THREADS_MAX], *left[THREADS_MAX]; /* of the stacks; left: by threads that are done */
    uint32_t begun_count, left_count; /* stacks from begun_count on have had no thread of this block */
    warp warps[THREADS_MAX / 32];
    uint32_t ready[THREADS_MAX / 32]; /* by warp: a bit for each lane that can run */
    uint32_t ready_warps[THREADS_MAX / 32], ready_warp_count, favoured, thread_count, now, barrier_arrived,
        done_count, slow_first, slow_count, slow_picks;
    uint32_t dependents[THREADS_MAX], dependent_count; /* that wait for what precedes the launch */
    context scheduler;
    void *scheduler_tsan;
    uint64_t random;
    const executor_kernel *kernel;
    const void *args;
    char barrier_sync, start_sync, end_sync; /* addresses that ThreadSanitizer is told of */

    char *view_end, *view; /* shared memory as the async proxy sees it */
    std::vector<mbarrier> barriers;
    std::vector<tile_copy> tile_copies;
    std::vector<uint32_t> sleepers; /* fibres that look again when a phase is over or registers are free */
    warpgroup warpgroups[THREADS_MAX / 128];
    uint32_t round, registers_free;
    machine *next;
};

static std::atomic<machine *> machines_made; /* by all threads */
EXECUTOR_LOCAL executor_thread executor_now;
static EXECUTOR_LOCAL machine *machines[DEPTH_MAX];
static EXECUTOR_LOCAL uint32_t depth;
static EXECUTOR_LOCAL machine *m;
static EXECUTOR_LOCAL void (*preceding)(void *);
static EXECUTOR_LOCAL void *preceding_context;

static executor_entry *entries;
float executor_half_values[65536];

executor_entry::executor_entry(const char *name, void (*run)(const void *), size_t args_bytes,
                               uint32_t threads) {
    kernel = {name, run, args_bytes, threads};
    executor_entry **place = &entries;
    while (*place && strcmp((*place)->kernel.name, name) < 0) place = &(*place)->next;
    next = *place;
    *place = this;
}

const executor_kernel *executor_find(const char *name) {
    for (executor_entry *e = entries; e; e = e->next)
        if (strcmp(e->kernel.name, name) == 0) return &e->kernel;
    return nullptr;
}

const executor_kernel *executor_kernel_at(size_t index) {
    executor_entry *e = entries;
    while (e && index-- > 0) e = e->next;
    return e ? &e->kernel : nullptr;
}

void executor_fault(const char *what, executor_site site) {
    fprintf(stderr, "executor: %s, block %u %u %u, thread %u: %s:%d: %s\n", m ? m->kernel->name : "?",
            executor_now.block[0], executor_now.block[1], executor_now.block[2], executor_now.index,
            site.file, site.line, what);
    fflush(stderr);
    _exit(99);
}

static uint64_t random_next() { /* splitmix64 */
    uint64_t z = m->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    return (z ^ z >> 27) * 0x94d049bb133111ebu;
}
static uint32_t random_draw(uint32_t bound) { return (uint32_t)((random_next() >> 32) * bound >> 32); }

/* ---- fibres */

static void lanes_wake(uint32_t warp, uint32_t lanes) {
    if (m->ready[warp] == 0 && lanes != 0) m->ready_warps[m->ready_warp_count++] = warp;
    m->ready[warp] |= lanes;
}
static void fibre_wake(uint32_t index) { lanes_wake(index / 32, 1u << index % 32); }
/* All that wait but this one, which goes on. */
static void warp_wake(uint32_t warp) { lanes_wake(warp, warp == m->now / 32 ? ~(1u << m->now % 32) : ~0u); }

/* Warps of a block that for a while go on only where no other can: none, one, or a warpgroup. */
static bool is_slow(uint32_t warp) { return warp - m->slow_first < m->slow_count; }

static void slow_draw() {
    const uint32_t counts[] = {0, 1, 4, 4}, warps = m->thread_count / 32;
    m->slow_picks = 256u << random_draw(6);
    m->slow_count = counts[random_draw(4)];
    if (warps <= m->slow_count) m->slow_count = 0;
    if (m->slow_count > 0) m->slow_first = random_draw(warps / m->slow_count) * m->slow_count;
}

static uint32_t warp_pick() {
    const uint32_t count = m->ready_warp_count, drawn = random_draw(count);
    uint32_t i = 0;
    while (i + 1 < count && is_slow(m->ready_warps[(drawn + i) % count])) i++;
    return m->ready_warps[(drawn + i) % count];
}

/* A lane of the favoured warp, at random: a warp that runs far ahead of the others, or falls far behind, shows what does
 * not wait for it, lanes out of order what relies on their order.  Now and then another warp is favoured. */
static uint32_t fibre_pick() {
    const uint64_t drawn = random_next() >> 32;
    if (m->slow_picks-- == 0) slow_draw();
    if (m->ready[m->favoured] == 0 || is_slow(m->favoured) || (drawn >> 5 & 63) == 0) m->favoured = warp_pick();
    const uint32_t w = m->favoured;
    const uint32_t left = m->ready[w], from = drawn & 31; /* the first that is ready, from there on */
    const uint32_t lane = (from + (uint32_t)__builtin_ctz(left >> from | left << (32 - from) % 32)) % 32;
    m->ready[w] &= ~(1u << lane);
    if (m->ready[w] == 0) {
        uint32_t i = 0;
        while (m->ready_warps[i] != w) i++;
        m->ready_warps[i] = m->ready_warps[--m->ready_warp_count];
    }
    return w * 32 + lane;
}

static void fibre_main();

/* The stack that was left last, which is in the cache: where a thread is done, the next one to begin has its own. */
static context *stack_take(const context *from) {
    context *c = m->left_count > 0 ? m->left[--m->left_count] : &m->contexts[m->begun_count++];
    if (c != from)
        context_prepare(c, m->stacks + (size_t)(c - m->contexts) * STACK_BYTES, STACK_BYTES, fibre_main);
    return c;
}

/* On to a fibre that can run; to the scheduler where there is none.  Returns when this one, or who has its stack, can. */
static void fibre_switch(context *from) {
    if (m->ready_warp_count == 0) {
        fiber_enter(m->scheduler_tsan);
        return context_switch(from, &m->scheduler);
    }
    executor_now.index = m->now = fibre_pick();
    fibre *next = &m->fibres[m->now];
    fiber_enter(next->tsan);
    if (next->stack == nullptr) next->stack = stack_take(from);
    if (next->stack != from) context_switch(from, next->stack);
}

static void fibre_main() {
    for (;;) {
        acquire(&m->start_sync);
        m->kernel->run(m->args);
        fibre *f = &m->fibres[m->now];
        if (!f->copies.empty()) executor_fault("ends while its copies are under way", {"", 0});
        if (f->waited != f->committed) executor_fault("ends while its products are under way", {"", 0});
        release(&m->end_sync);
        f->is_done = true;
        m->done_count++;
        if (STACKS_ARE_SHARED) m->left[m->left_count++] = f->stack;
        fibre_switch(f->stack);
    }
}

static void fibre_wait(executor_site site) {
    fibre *f = &m->fibres[m->now];
    f->waits = site;
    fibre_switch(f->stack);
}

static void precede_run() {
    void (*work)(void *) = preceding;
    preceding = nullptr;
    if (work) work(preceding_context);
}

static void dependents_wake() {
    precede_run();
    release(&m->start_sync);
    while (m->dependent_count > 0) fibre_wake(m->dependents[--m->dependent_count]);
}

static void tile_copy_land();

static void report_deadlock() {
    for (uint32_t i = 0; i < m->thread_count; i++)
        if (!m->fibres[i].is_done) {
            executor_now.index = i;
            executor_fault("waits for threads that do not come", m->fibres[i].waits);
        }
}

static void block_run(const uint32_t block[3]) {
    for (int i = 0; i < 3; i++) executor_now.block[i] = block[i];
    memset(m->shared, 0xff, m->shared_bytes);
    m->barriers.clear();
    slow_draw();
    m->round = m->registers_free = 0;
    for (warpgroup &g : m->warpgroups)
        g.done = g.arrived = 0,
        g.registers = 65536 / m->thread_count / 8 * 8; /* what a launch gives a thread */
    m->begun_count = m->left_count = m->ready_warp_count = m->dependent_count = 0;
    m->favoured = m->barrier_arrived = m->done_count = 0;
    for (uint32_t &lanes : m->ready) lanes = 0;
    for (uint32_t i = 0; i < m->thread_count; i++) {
        fibre *f = &m->fibres[i];
        f->stack = nullptr;
        f->is_done = f->is_fenced = false;
        f->group = f->issued = f->committed = f->waited = 0;
        f->stores.clear();
        fibre_wake(i);
    }
    for (warp &w : m->warps) w.arrived = 0;
    release(&m->start_sync);
    while (m->done_count < m->thread_count) {
        while (m->ready_warp_count == 0 && !m->tile_copies.empty()) tile_copy_land();
        if (m->ready_warp_count == 0 && m->dependent_count > 0) dependents_wake();
        if (m->ready_warp_count == 0) report_deadlock();
        fibre_switch(&m->scheduler);
    }
    if (!m->tile_copies.empty()) executor_fault("ends while the copy of a tile is under way", {"", 0});
    for (const mbarrier &b : m->barriers)
        if (b.pending != b.arrivals || b.bytes != 0) executor_fault("a barrier ends within a phase", b.site);
    for (const warpgroup &g : m->warpgroups)
        if (!g.products.empty()) executor_fault("a product was never waited for", g.products.front().site);
    acquire(&m->end_sync);
}

/* Ends at a page that faults. */
static char *area_create(size_t bytes, size_t page) {
    char *area = (char *)mmap(nullptr, bytes + page, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED || mprotect(area + bytes, page, PROT_NONE) != 0) abort();
    return area;
}

static size_t page_bytes() { return (size_t)sysconf(_SC_PAGESIZE); }
static size_t area_bytes() { return (SHARED_MAX + page_bytes() - 1) / page_bytes() * page_bytes(); }

static machine *machine_create() {
    machine *made = new machine();
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    const size_t page = page_bytes(), shared = area_bytes();
    made->stacks =
        (char *)mmap(nullptr, (size_t)THREADS_MAX * STACK_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (made->stacks == MAP_FAILED) abort();
    made->shared_end = area_create(shared, page) + shared;
    made->view_end = area_create(shared, page) + shared;
    made->fibres = new fibre[THREADS_MAX]();
    made->next = machines_made.load();
    while (!machines_made.compare_exchange_weak(made->next, made)) {}
    return made;
}

/* A driver that is closed is loaded anew, without what it had. */
__attribute__((destructor)) static void machines_destroy() {
    for (machine *made = machines_made, *next; made != nullptr; made = next) {
        next = made->next;
#ifdef __SANITIZE_ADDRESS__ /* else what comes to lie there has the marks of their frames */
        __asan_unpoison_memory_region(made->stacks, (size_t)THREADS_MAX * STACK_BYTES);
#endif
        munmap(made->stacks, (size_t)THREADS_MAX * STACK_BYTES);
        for (char *end : {made->shared_end, made->view_end}) munmap(end - area_bytes(), area_bytes() + page_bytes());
        delete[] made->fibres;
        delete made;
    }
}

void executor_precede(void (*work)(void *), void *context) {
    preceding = work;
    preceding_context = context;
}

void executor_launch(const executor_kernel *kernel, const uint32_t grid[3], const uint32_t block[3],
                     size_t shared_bytes, const void *args, uint64_t seed) {
    const uint32_t threads = block[0] * block[1] * block[2];
    if (depth >= DEPTH_MAX || threads != block[0] || threads % 32 || threads > kernel->threads ||
        shared_bytes > SHARED_MAX) {
        fprintf(stderr, "executor: %s cannot be launched so: %u threads, %zu shared bytes\n", kernel->name,
                threads, shared_bytes);
        _exit(99);
    }
    machine *outer = m;
    const executor_thread outer_now = executor_now;
    if (machines[depth] == nullptr) machines[depth] = machine_create();
    m = machines[depth++];
    m->kernel = kernel;
    m->args = args;
    m->thread_count = threads;
    m->random = seed;
    m->shared_bytes = (shared_bytes + 1023) / 1024 * 1024; /* keeps the beginning aligned */
    m->shared = m->shared_end - m->shared_bytes;
    m->view = m->view_end - m->shared_bytes;
    m->scheduler_tsan = fiber_current();
    for (uint32_t i = 0; i < threads; i++)
        if (m->fibres[i].tsan == nullptr) m->fibres[i].tsan = fiber_create();
    for (int i = 0; i < 3; i++) executor_now.grid[i] = grid[i];
    std::vector<uint64_t> order((size_t)grid[0] * grid[1] * grid[2]);
    for (size_t i = 0; i < order.size(); i++) {
        order[i] = i;
        std::swap(order[i], order[random_draw((uint32_t)i + 1)]);
    }
    for (uint64_t i : order) {
        const uint32_t at[3] = {(uint32_t)(i % grid[0]), (uint32_t)(i / grid[0] % grid[1]),
                                (uint32_t)(i / grid[0] / grid[1])};
        block_run(at);
    }
    depth--;
    m = outer;
    executor_now = outer_now;
    precede_run(); /* if no thread waited for it */
}

/* ---- what a kernel asks for */

void *executor_shared(size_t bytes) {
    if (bytes > m->shared_bytes) executor_fault("shares more than the launch gave", {"", 0});
    return m->shared;
}

/* As late as can be: when no thread of the block can do more. */
void executor_dependency_wait() {
    if (preceding == nullptr) return;
    m->dependents[m->dependent_count++] = m->now;
    fibre_wait({"dependency_wait", 0});
    acquire(&m->start_sync);
}

void executor_barrier(const char *file, int line) {
    release(&m->barrier_sync);
    if (++m->barrier_arrived < m->thread_count) {
        fibre_wait({file, line});
    } else {
        m->barrier_arrived = 0;
        m->round++;
        for (uint32_t i = 0; i < m->thread_count / 32; i++) warp_wake(i);
    }
    acquire(&m->barrier_sync);
}

[[noreturn, gnu::noinline]] static void report_divergence(const warp *w, executor_site site) {
    char text[200];
    snprintf(text, sizeof text, "its warp diverges: another lane is at %s:%d", w->site.file, w->site.line);
    executor_fault(text, site);
}

/* Whether this lane is the last of its warp to come; `act` follows, then warp_leave. */
static inline bool warp_meet(warp *w, int kind, executor_site site) {
    if (w->arrived++ == 0) {
        w->kind = kind;
        w->site = site;
    } else if (w->kind != kind || w->site.line != site.line) {
        report_divergence(w, site);
    }
    return w->arrived == 32;
}

static void warp_leave(warp *w) {
    w->arrived = 0;
    warp_wake(m->now / 32);
}

/* Each step of it over all lanes. */
template <typename FOLD> static void lanes_fold(warp *w, FOLD fold) {
    for (uint32_t by = w->operand[0] / 2; by > 0; by >>= 1) {
        uint32_t before[32];
        memcpy(before, w->value, sizeof before);
        for (uint32_t i = 0; i < 32; i++) w->value[i] = fold(before[i], before[i ^ by]);
    }
    memcpy(w->result, w->value, sizeof w->result);
}

static void lanes_exchange(warp *w, int kind) {
    switch (kind) {
    case EXECUTOR_SUM:
        return lanes_fold(w, [](uint32_t own, uint32_t other) {
            return float_bits(bits_float(own) + bits_float(other));
        });
    case EXECUTOR_LARGEST:
        return lanes_fold(w, [](uint32_t own, uint32_t other) {
            return float_bits(larger(bits_float(other), bits_float(own)));
        });
    case EXECUTOR_LARGEST_WORD:
        return lanes_fold(w, [](uint32_t own, uint32_t other) { return other > own ? other : own; });
    }
    if (kind == EXECUTOR_BALLOT) {
        uint32_t ballot = 0;
        for (uint32_t i = 0; i < 32; i++) ballot |= (uint32_t)(w->value[i] != 0) << i;
        for (uint32_t &result : w->result) result = ballot;
        return;
    }
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t operand = w->operand[i];
        const uint32_t from = kind == EXECUTOR_XOR   ? (i ^ operand) & 31
                              : kind == EXECUTOR_GET ? operand & 31
                              : i >= operand         ? i - operand
                                                     : i;
        w->result[i] = w->value[from];
    }
}

uint32_t executor_lane(int kind, uint32_t value, uint32_t operand, const char *file, int line) {
    warp *w = &m->warps[m->now / 32];
    const uint32_t lane = m->now % 32;
    if (kind == EXECUTOR_WARP) release(w); /* the only one that orders memory */
    w->value[lane] = value;
    w->operand[lane] = operand;
    if (warp_meet(w, kind, {file, line})) {
        lanes_exchange(w, kind);
        warp_leave(w);
    } else {
        fibre_wait({file, line});
    }
    if (kind == EXECUTOR_WARP) acquire(w);
    return w->result[lane];
}

static void copy_land(const pending &copy) {
    u32x4 value = {0, 0, 0, 0};
    if (copy.from) memcpy(&value, copy.from, 16);
    memcpy(copy.to, &value, 16);
    if (!m->barriers.empty()) m->fibres[m->now].stores.push_back({copy.to, value}); /* products may want it */
}

void executor_copy(void *to, const void *from, bool takes, const char *file, int line) {
    char *target = (char *)to;
    if (target < m->shared || target + 16 > m->shared_end || (uintptr_t)target % 16 || (uintptr_t)from % 16)
        executor_fault("a copy to a wrong address", {file, line});
    fibre *f = &m->fibres[m->now];
    const pending copy = {target, takes ? (const char *)from : nullptr, f->group};
    if (random_draw(4) == 0)
        copy_land(copy);
    else
        f->copies.push_back(copy);
}

void executor_copy_commit() { m->fibres[m->now].group++; }

void executor_copy_wait(uint32_t groups) {
    fibre *f = &m->fibres[m->now];
    size_t kept = 0;
    for (const pending &copy : f->copies)
        if (copy.group + groups < f->group)
            copy_land(copy);
        else
            f->copies[kept++] = copy;
    f->copies.resize(kept);
}

/* ---- matrices: by the tables of the PTX manual; g = lane / 4, t = lane % 4 */

static void matrix_load_all(warp *w, bool turned) {
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t word = 0;
            for (uint32_t e = 0; e < 2; e++) {
                const uint32_t row = turned ? lane % 4 * 2 + e : lane / 4,
                               column = turned ? lane / 4 : lane % 4 * 2 + e;
                word |= (uint32_t)((const uint16_t *)w->source[i * 8 + row])[column] << 16 * e;
            }
            ((uint32_t *)w->target[lane])[i] = word;
        }
}

void executor_matrix_load(uint32_t *r, const char *row, bool turned, const char *file, int line) {
    if (row < m->shared || row + 16 > m->shared_end || (uintptr_t)row % 16)
        executor_fault("a matrix at a wrong address", {file, line});
    warp *w = &m->warps[m->now / 32];
    w->target[m->now % 32] = r;
    w->source[m->now % 32] = row;
    if (!warp_meet(w, turned ? MATRIX_LOAD_TURNED : MATRIX_LOAD, {file, line}))
        return fibre_wait({file, line});
    matrix_load_all(w, turned);
    warp_leave(w);
}

/* d + 16 products, four sums side by side.  Matrix units cut what does not fit, they do not round ("Numerical behavior of
 * NVIDIA tensor cores", PeerJ 2021): a sum that is not exact is nearer to 0 by some two last places of what is added. */
typedef float four __attribute__((vector_size(16)));
typedef int32_t four_words __attribute__((vector_size(16)));

static four four_of(const float *at) {
    four v;
    memcpy(&v, at, sizeof v);
    return v;
}
static void products_add(const float a[16], const float *b, size_t b_stride, float d[4]) {
    const four_words SIZE = four_words{} + 0x7fffffff;
    const four before = four_of(d);
    four sum = {};
    for (uint32_t k = 0; k < 16; k++) sum += a[k] * four_of(b + k * b_stride);
    const four result = before + sum, added = result - before, lost = before - (result - added) + (sum - added);
    const four size = (four)((four_words)before & SIZE) + (four)((four_words)sum & SIZE);
    const four_words cut = (four_words)(size * 0x1p-23f) | ((four_words)result & ~SIZE);
    const four final = result - (four)(cut & ((lost < 0) | (lost > 0))); /* not of what is infinite */
    memcpy(d, &final, sizeof final);
}

static void multiply_all(warp *w) {
    alignas(16) float a[16][16], b[16][8];
    for (uint32_t lane = 0; lane < 32; lane++) {
        const uint32_t g = lane / 4, t = lane % 4, *words = (const uint32_t *)w->source[lane];
        const uint32_t columns[2] = {w->value[lane], w->operand[lane]};
        for (uint32_t i = 0; i < 4; i++) {
            float *to = &a[g + i % 2 * 8][t * 2 + i / 2 * 8];
            to[0] = executor_half_values[words[i] & 0xffff], to[1] = executor_half_values[words[i] >> 16];
        }
        for (uint32_t i = 0; i < 2; i++) {
            b[t * 2 + i * 8][g] = executor_half_values[columns[i] & 0xffff];
            b[t * 2 + i * 8 + 1][g] = executor_half_values[columns[i] >> 16];
        }
    }
    for (uint32_t row = 0; row < 16; row++)
        for (uint32_t half = 0; half < 2; half++) { /* of two lanes, that have two sums each */
            float *d[2], sums[4];
            for (uint32_t i = 0; i < 2; i++) {
                d[i] = (float *)w->target[row % 8 * 4 + half * 2 + i] + row / 8 * 2;
                memcpy(sums + i * 2, d[i], sizeof *sums * 2);
            }
            products_add(a[row], &b[0][half * 4], 8, sums);
            for (uint32_t i = 0; i < 2; i++) memcpy(d[i], sums + i * 2, sizeof *sums * 2);
        }
}

static void multiply_bytes_all(warp *w) {
    int32_t a[16][32], b[8][32];
    for (uint32_t lane = 0; lane < 32; lane++) {
        const uint32_t g = lane / 4, t = lane % 4, *words = (const uint32_t *)w->source[lane];
        const uint32_t columns[2] = {w->value[lane], w->operand[lane]};
        for (uint32_t e = 0; e < 4; e++) {
            for (uint32_t i = 0; i < 4; i++)
                a[g + i % 2 * 8][t * 4 + e + i / 2 * 16] = (int8_t)(words[i] >> 8 * e);
            for (uint32_t i = 0; i < 2; i++) b[g][t * 4 + e + i * 16] = (int8_t)(columns[i] >> 8 * e);
        }
    }
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            int32_t sum = 0;
            for (uint32_t k = 0; k < 32; k++) sum += a[row][k] * b[column][k];
            ((int32_t *)w->target[lane])[i] += sum;
        }
}

static void multiply(void *d, const uint32_t *a, uint32_t b0, uint32_t b1, int kind, executor_site site) {
    warp *w = &m->warps[m->now / 32];
    const uint32_t lane = m->now % 32;
    w->target[lane] = d;
    w->source[lane] = a;
    w->value[lane] = b0;
    w->operand[lane] = b1;
    if (!warp_meet(w, kind, site)) return fibre_wait(site);
    if (kind == MATRIX_HALVES)
        multiply_all(w);
    else
        multiply_bytes_all(w);
    warp_leave(w);
}

void executor_matrix_multiply(float *d, const uint32_t *a, uint32_t b0, uint32_t b1, const char *file,
                              int line) {
    multiply(d, a, b0, b1, MATRIX_HALVES, {file, line});
}

void executor_matrix_multiply_bytes(int32_t *d, const uint32_t *a, uint32_t b0, uint32_t b1, const char *file,
                                    int line) {
    multiply(d, a, b0, b1, MATRIX_BYTES, {file, line});
}

/* ---- sm_90a: barriers, tiles, products of warpgroups */

/* What the executor does in a scope is no fibre's: of calls of the C library ThreadSanitizer sees reads and writes. */
struct apart {
    void *fibre = fiber_current();
    apart() { fiber_enter(m->scheduler_tsan); }
    ~apart() { fiber_enter(fibre); }
};

static void fibre_sleep(executor_site site) {
    {
        apart scope;
        m->sleepers.push_back(m->now);
    }
    fibre_wait(site);
}
static void sleepers_wake() {
    for (uint32_t index : m->sleepers) fibre_wake(index);
    m->sleepers.clear();
}

/* Where the bytes are in shared memory; ends the program where they are not. */
static size_t shared_offset(const char *at, size_t bytes, size_t alignment, const char *what,
                            executor_site site) {
    if (at < m->shared || at + bytes > m->shared_end || (size_t)(at - m->shared) % alignment)
        executor_fault(what, site);
    return (size_t)(at - m->shared);
}

static mbarrier *mbarrier_find(const char *at) {
    for (mbarrier &b : m->barriers)
        if (b.at == at) return &b;
    return nullptr;
}
static mbarrier *mbarrier_at(const char *at, executor_site site) {
    mbarrier *b = mbarrier_find(at);
    if (b == nullptr) executor_fault("a barrier that was not made", site);
    if (!b->is_published) executor_fault("a barrier without mbarriers_publish", site);
    if (b->by != m->now && b->round == m->round)
        executor_fault("a barrier that was made, and nobody met since", site);
    return b;
}

static void phase_check(mbarrier *b) {
    if (b->pending > 0 || b->bytes != 0) return;
    b->phase ^= 1;
    b->pending = b->arrivals;
    sleepers_wake();
}

void executor_mbarrier_init(char *barrier, uint32_t arrivals, const char *file, int line) {
    apart scope;
    (void)shared_offset(barrier, 8, 8, "a barrier at a wrong address", {file, line});
    if (m->barriers.empty()) memset(m->view, 0xff, m->shared_bytes);
    if (arrivals == 0 || mbarrier_find(barrier))
        executor_fault("a barrier is made twice, or for nobody", {file, line});
    m->barriers.push_back({barrier, arrivals, arrivals, 0, m->now, m->round, 0, false, {file, line}});
}

void executor_mbarriers_publish() {
    for (mbarrier &b : m->barriers) b.is_published = b.is_published || b.by == m->now;
}

/* What is on its way may come now. */
static void tile_copies_go_on() {
    if (!m->tile_copies.empty() && random_draw(4) == 0) tile_copy_land();
}

void executor_mbarrier_arrive(char *barrier, uint32_t bytes, const char *file, int line) {
    tile_copies_go_on();
    mbarrier *b = mbarrier_at(barrier, {file, line});
    if (b->pending == 0) executor_fault("more arrivals at a barrier than it was made for", {file, line});
    release(barrier);
    b->bytes += bytes;
    b->pending--;
    phase_check(b);
}

void executor_mbarrier_wait(char *barrier, uint32_t parity, const char *file, int line) {
    tile_copies_go_on();
    while (mbarrier_at(barrier, {file, line})->phase == parity) fibre_sleep({file, line});
    acquire(barrier);
}

void executor_tensor_map(void *map, const void *halves, uint32_t columns, uint32_t rows, uint32_t box_rows) {
    const executor_tensor tensor = {
        EXECUTOR_TENSOR_MARK, (uintptr_t)halves, columns, rows, columns * 2, 64, box_rows, 2, 128};
    memcpy(map, &tensor, sizeof tensor);
}

/* From its issue on a tile is nobody's: NaN until it lands, for threads and for products. */
void executor_tensor_copy(char *to, const void *map, char *barrier, uint32_t column, uint32_t row,
                          const char *file, int line) {
    const executor_site site = {file, line};
    apart scope;
    tile_copy copy = {{}, to, barrier, (int32_t)column, (int32_t)row};
    memcpy(&copy.tensor, map, sizeof copy.tensor);
    const executor_tensor &t = copy.tensor;
    if ((uintptr_t)map % 64 || t.mark != EXECUTOR_TENSOR_MARK)
        executor_fault("a tile of no tensor map", site);
    const size_t bytes = (size_t)t.box_rows * t.box_columns * t.element_bytes;
    const size_t at =
        shared_offset(to, bytes, t.swizzle_bytes ? 1024 : 128, "a tile at a wrong address", site);
    (void)mbarrier_at(barrier, site);
    memset(to, 0xff, bytes);
    memset(m->view + at, 0xff, bytes);
    m->tile_copies.push_back(copy);
    tile_copies_go_on();
}

/* One of those on their way, at random. */
static void tile_copy_land() {
    apart scope;
    const size_t drawn = random_draw((uint32_t)m->tile_copies.size());
    const tile_copy copy = m->tile_copies[drawn];
    const executor_tensor &t = copy.tensor;
    m->tile_copies.erase(m->tile_copies.begin() + (ptrdiff_t)drawn);
    const uint32_t row_bytes = t.box_columns * t.element_bytes;
    size_t at = (size_t)(copy.to - m->shared);
    for (int64_t row = copy.row; row < copy.row + (int64_t)t.box_rows; row++)
        for (uint32_t byte = 0; byte < row_bytes; byte += t.element_bytes, at += t.element_bytes) {
            const int64_t column = copy.column + byte / t.element_bytes;
            const bool is_there =
                row >= 0 && row < (int64_t)t.rows && column >= 0 && column < (int64_t)t.columns;
            const size_t to = t.swizzle_bytes == 128 ? at ^ (at >> 7 & 7) << 4 : at;
            const uint64_t from =
                t.address + (uint64_t)row * t.stride_bytes + (uint64_t)column * t.element_bytes;
            if (is_there)
                memcpy(m->shared + to, (const void *)(uintptr_t)from, t.element_bytes);
            else
                memset(m->shared + to, 0, t.element_bytes);
            memcpy(m->view + to, m->shared + to, t.element_bytes);
        }
    mbarrier *b = mbarrier_find(copy.barrier);
    b->bytes -= (int64_t)t.box_rows * row_bytes;
    phase_check(b);
}

void executor_store_async(char *to, const void *from, const char *file, int line) {
    (void)shared_offset(to, 16, 16, "a store to a wrong address", {file, line});
    memcpy(to, from, 16);
    m->fibres[m->now].stores.push_back({to, *(const u32x4 *)from});
}

void executor_async_fence() {
    fibre *f = &m->fibres[m->now];
    for (const unseen &store : f->stores) memcpy(m->view + (store.to - m->shared), &store.value, 16);
    f->stores.clear();
}

/* Whether this thread is the last of its four warps to come; `act` follows, then warpgroup_leave. */
static bool warpgroup_meet(warpgroup *g, executor_site site) {
    if (m->thread_count % 128) executor_fault("a warpgroup without four warps", site);
    if (g->arrived++ == 0)
        g->site = site;
    else if (g->site.line != site.line)
        executor_fault("its warpgroup diverges", site);
    return g->arrived == 128;
}
static void warpgroup_leave(warpgroup *g) {
    g->arrived = 0;
    for (uint32_t i = 0; i < 4; i++) warp_wake(m->now / 128 * 4 + i);
}

void executor_registers(uint32_t count, bool raises, const char *file, int line) {
    warpgroup *g = &m->warpgroups[m->now / 128];
    if (count % 8 || count < 24 || count > 256 || raises != (count > g->registers))
        executor_fault("a number of registers that cannot be", {file, line});
    if (!warpgroup_meet(g, {file, line})) return fibre_wait({file, line});
    while (raises && m->registers_free < (count - g->registers) * 128) fibre_sleep({file, line});
    m->registers_free += (g->registers - count) * 128;
    g->registers = count;
    sleepers_wake();
    warpgroup_leave(g);
}

/* A block's own memory does not begin at 0. */
enum { SHARED_NUMBER = 1024 };
uint32_t executor_shared_number(const char *address) {
    return (uint32_t)(address - m->shared) + SHARED_NUMBER;
}

void executor_wgmma_fence() { m->fibres[m->now].is_fenced = true; }
void executor_wgmma_commit() {
    m->fibres[m->now].committed++;
    m->fibres[m->now].is_fenced = false; /* what is touched between two groups is behind no fence */
}

/* Row r of a matrix that a descriptor names, 16 halves, by the PTX manual, with the swizzle of 128 bytes: K-major, or
 * turned, MN-major, 64 of its rows to a panel. */
static void row_read(uint64_t descriptor, bool is_turned, uint32_t r, float to[16], executor_site site) {
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0)
        executor_fault("a descriptor of another kind", site);
    const uint32_t stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4,
                   panel = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    for (uint32_t k = 0; k < 16; k++) {
        size_t at = ((size_t)(descriptor & 0x3fff) << 4) - SHARED_NUMBER;
        at += is_turned ? k / 8 * stride + k % 8 * 128 + r / 64 * panel + r % 64 * 2
                        : r / 8 * stride + r % 8 * 128 + k * 2;
        at ^= (at >> 7 & 7) << 4;
        if (at + 2 > m->shared_bytes) executor_fault("a descriptor beyond shared memory", site);
        uint16_t half;
        memcpy(&half, m->view + at, 2);
        to[k] = executor_half_values[half];
    }
}

static void product_read(product *p) {
    const uint32_t columns = p->operands.columns;
    const bool in_registers = p->operands.fragment != nullptr;
    p->a.resize(64 * 16);
    p->b.resize((size_t)16 * columns);
    for (uint32_t r = 0; r < 64 && !in_registers; r++) row_read(p->operands.a, false, r, &p->a[r * 16], p->site);
    for (uint32_t i = 0; i < 128 * 8 && in_registers; i++) {
        const uint32_t t = i / 8, word = i / 2 % 4;
        p->a[(t / 32 * 16 + t % 32 / 4 + word % 2 * 8) * 16 + t % 4 * 2 + word / 2 * 8 + i % 2] =
            executor_half_values[p->fragments[t][word] >> i % 2 * 16 & 0xffff];
    }
    for (uint32_t c = 0; c < columns; c++) {
        float row[16];
        row_read(p->operands.b, in_registers, c, row, p->site);
        for (uint32_t k = 0; k < 16; k++) p->b[k * columns + c] = row[k];
    }
}

static void product_end(product *p) {
    if (p->arrived != 128) executor_fault("a product that not all of its warpgroup have come to", p->site);
    if (p->a.empty()) product_read(p);
    const uint32_t columns = p->operands.columns;
    for (uint32_t row = 0; row < 64; row++)
        for (uint32_t c = 0; c < columns; c += 4) { /* of two threads, that have two sums each */
            float *d[2], sums[4] = {};
            for (uint32_t i = 0; i < 2; i++) {
                d[i] = p->d[row / 16 * 32 + row % 8 * 4 + c % 8 / 2 + i] + c / 8 * 4 + row / 8 % 2 * 2;
                if (p->operands.adds) memcpy(sums + i * 2, d[i], sizeof *sums * 2);
            }
            products_add(&p->a[row * 16], &p->b[c], columns, sums);
            for (uint32_t i = 0; i < 2; i++) memcpy(d[i], sums + i * 2, sizeof *sums * 2);
        }
}

/* Reads its matrices here or at its wait, and is added there. */
void executor_wgmma(float *d, const executor_operands *operands, const char *file, int line) {
    fibre *f = &m->fibres[m->now];
    warpgroup *g = &m->warpgroups[m->now / 128];
    apart scope;
    if (!f->is_fenced) executor_fault("a product without wgmma_fence", {file, line});
    const uint32_t index = f->issued++ - g->done;
    if (index == g->products.size())
        g->products.push_back({*operands, f->committed, 0, {file, line}, {}, {}, {}, {}});
    product *p = &g->products[index];
    const executor_operands &first = p->operands;
    if (first.a != operands->a || first.b != operands->b || first.columns != operands->columns ||
        first.adds != operands->adds || p->group != f->committed)
        executor_fault("its warpgroup disagrees about a product", {file, line});
    p->d[m->now % 128] = d;
    p->fragments[m->now % 128] = operands->fragment;
    if (++p->arrived == 128 && random_draw(2) == 0) product_read(p);
}

void executor_wgmma_wait(uint32_t groups, const char *file, int line) {
    fibre *f = &m->fibres[m->now];
    warpgroup *g = &m->warpgroups[m->now / 128];
    f->waited = f->committed > groups ? f->committed - groups : 0;
    if (!warpgroup_meet(g, {file, line})) return fibre_wait({file, line});
    for (; !g->products.empty() && g->products.front().group < f->waited; g->done++) {
        apart scope;
        product_end(&g->products.front());
        g->products.pop_front();
    }
    warpgroup_leave(g);
}

/* ---- numbers */

static float half_decode(uint32_t half) {
    const uint32_t exponent = half >> 10 & 31, mantissa = half & 1023;
    const float sign = half & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
    return sign *
           (exponent ? ldexpf((float)(mantissa + 1024), (int)exponent - 25) : ldexpf((float)mantissa, -24));
}

__attribute__((constructor)) static void half_values_fill() {
    for (uint32_t i = 0; i < 65536; i++) executor_half_values[i] = half_decode(i);
}

uint32_t executor_half_of(float x) { /* to the nearest, ties to even */
    const uint32_t bits = float_bits(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return 0x7fff;
    if (size >= 0x477ff000) return sign | 0x7c00;
    if (size < 0x38800000) return sign | (float_bits(bits_float(size) + 0.5f) - 0x3f000000);
    return sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
}

/* The processor's is good to 2^-22 of itself: this one is off by up to two last places, the same for the same x. */
float executor_exp2(float x) {
    if (x == 0) return 1;
    const float exact = exp2f(x);
    if (!(exact > 1e-37f) || exact > 1e38f) return exact < 1e-37f ? 0 : exact;
    const uint32_t off = float_bits(x) * 2654435761u >> 29;
    return bits_float(float_bits(exact) + (off > 4 ? 0 : off) - 2);
}

float executor_log2(float x) {
    const float exact = log2f(x), off = (float)((int)(float_bits(x) * 2654435761u >> 30) - 1) * 0x1p-23f;
    return x == 1 ? 0 : exact + off * (fabsf(exact) > 1 ? fabsf(exact) : 1);
}
