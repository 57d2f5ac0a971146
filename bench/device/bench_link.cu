/* bench_link.cu: what a GPU as a device of the KV hierarchy will stand on: copies over its link by size, reads of rows
 * that lie in pinned memory by kernels (CLO's zero-copy transfer) beside the ways that copy them, and how long the two
 * sides wait for each other (CLO's device-side waiting).
 *
 *     nvcc -O3 -arch=native -o bench_link bench_link.cu -lcuda && ./bench_link > link.csv
 *
 * CUDA alone, outside the build: it measures machines, loam has no CUDA device.  Rows are chosen at random without
 * repetition from 2 GiB, so that no cache holds them.  Medians of ROUNDS; GB is 1e9 bytes. */
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#define CHECK(call)                                                                                     \
    do {                                                                                                \
        const int status = (int)(call);                                                                 \
        if (status != 0) {                                                                              \
            fprintf(stderr, "bench_link: line %d: %s: error %d\n", __LINE__, #call, status);            \
            exit(1);                                                                                    \
        }                                                                                               \
    } while (0)

enum { ROUNDS = 11, QUEUED = 64 };
static const size_t HOST_BYTES = (size_t)2 << 30, GATHER_BYTES = (size_t)32 << 20, LARGEST = (size_t)64 << 20;

static double now(void)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/* Seconds that `work` takes until the stream is empty: median, least and most. */
struct spread {
    double median, least, most;
};

static struct spread time_of(cudaStream_t stream, const std::function<void()> &work)
{
    std::vector<double> seconds;
    for (int round = 0; round <= ROUNDS; round++) {
        CHECK(cudaStreamSynchronize(stream));
        const double began = now();
        work();
        CHECK(cudaStreamSynchronize(stream));
        if (round > 0) seconds.push_back(now() - began); /* the first one warms up */
    }
    std::sort(seconds.begin(), seconds.end());
    return {seconds[ROUNDS / 2], seconds.front(), seconds.back()};
}

/* bytes: of one work of `count` parts. */
static void report(const char *what, size_t unit, int width, size_t bytes, size_t count, struct spread s)
{
    printf("\"%s\",%zu,%d,%.3f,%.3f,%.3f,%.3f\n", what, unit, width, bytes / s.median / 1e9, s.median / count * 1e6,
           s.least / count * 1e6, s.most / count * 1e6);
    fflush(stdout);
}

/* Rows of `pieces` times 16 bytes: rows[i] is where row i begins, in pieces.  Four loads of a thread are on their way
 * at once, as a load over the link takes longer than a thread has other work for. */
__global__ void gather(const uint4 *__restrict__ from, uint4 *__restrict__ to, const unsigned *__restrict__ rows,
                       unsigned pieces, size_t total)
{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; at + 3 * stride < total; at += 4 * stride) {
        uint4 held[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const size_t piece = at + i * stride;
            held[i] = from[rows[piece / pieces] + piece % pieces];
        }
#pragma unroll
        for (int i = 0; i < 4; i++) to[at + i * stride] = held[i];
    }
    for (; at < total; at += stride) to[at] = from[rows[at / pieces] + at % pieces];
}

__global__ void scatter(const uint4 *__restrict__ from, uint4 *__restrict__ to, const unsigned *__restrict__ rows,
                        unsigned pieces, size_t total)
{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x; at < total; at += stride)
        to[rows[at / pieces] + at % pieces] = from[at];
}

__global__ void nothing(void) {}

/* Answers every number that the host writes until it is `last`. */
__global__ void answer(volatile unsigned *asked, volatile unsigned *answered, unsigned last)
{
    for (unsigned next = 1; next <= last; next++) {
        while (*asked != next) {}
        *answered = next;
        __threadfence_system();
    }
}

static void measure_copies(cudaStream_t stream, char *pinned, char *device)
{
    std::vector<char> pageable(LARGEST, 1);
    for (size_t size = 4096; size <= LARGEST; size *= 4) {
        const struct {
            const char *name;
            void *to, *from;
            cudaMemcpyKind kind;
        } ways[] = {{"copy to the device, pinned", device, pinned, cudaMemcpyHostToDevice},
                    {"copy to the device, pageable", device, pageable.data(), cudaMemcpyHostToDevice},
                    {"copy to the host, pinned", pinned, device, cudaMemcpyDeviceToHost},
                    {"copy to the host, pageable", pageable.data(), device, cudaMemcpyDeviceToHost}};
        for (const auto &way : ways)
            report(way.name, size, 1, size, 1,
                   time_of(stream, [&] { CHECK(cudaMemcpyAsync(way.to, way.from, size, way.kind, stream)); }));
        report("copies to the device, pinned, queued", size, QUEUED, size * QUEUED, QUEUED, time_of(stream, [&] {
                   for (int i = 0; i < QUEUED; i++)
                       CHECK(cudaMemcpyAsync(device, pinned + i % 16 * LARGEST, size, cudaMemcpyHostToDevice, stream));
               }));
    }
}

static void measure_rows(cudaStream_t stream, char *pinned, char *device, unsigned *device_rows)
{
    std::mt19937_64 random(1);
    const unsigned processors[] = {1, 2, 4, 8, 16, 32, 64, 128, 512};
    std::vector<char> plain(HOST_BYTES / 2, 1);
    for (size_t unit = 128; unit <= 65536; unit *= unit < 4096 ? 2 : 4) {
        const size_t count = GATHER_BYTES / unit;
        std::vector<unsigned> all(HOST_BYTES / unit), rows(count);
        for (size_t i = 0; i < all.size(); i++) all[i] = (unsigned)i;
        for (size_t i = 0; i < count; i++) {
            std::swap(all[i], all[i + random() % (all.size() - i)]);
            rows[i] = (unsigned)(all[i] * (unit / 16));
        }
        CHECK(cudaMemcpy(device_rows, rows.data(), count * sizeof *device_rows, cudaMemcpyHostToDevice));
        const unsigned pieces = (unsigned)(unit / 16);
        for (unsigned blocks : processors)
            report("rows read by a kernel, pinned", unit, (int)blocks, GATHER_BYTES, count, time_of(stream, [&] {
                       gather<<<blocks, 512, 0, stream>>>((uint4 *)pinned, (uint4 *)device, device_rows, pieces,
                                                          GATHER_BYTES / 16);
                   }));
        for (unsigned blocks : {8u, 32u, 128u})
            report("rows written by a kernel, pinned", unit, (int)blocks, GATHER_BYTES, count, time_of(stream, [&] {
                       scatter<<<blocks, 512, 0, stream>>>((uint4 *)device, (uint4 *)pinned, device_rows, pieces,
                                                           GATHER_BYTES / 16);
                   }));
        const size_t few = std::min(count, (size_t)2048);
        report("rows copied one by one", unit, 1, few * unit, few, time_of(stream, [&] {
                   for (size_t i = 0; i < few; i++)
                       CHECK(cudaMemcpyAsync(device + i * unit, pinned + rows[i] * (size_t)16, unit,
                                             cudaMemcpyHostToDevice, stream));
               }));
#if CUDART_VERSION >= 13000
        std::vector<void *> to(few);
        std::vector<const void *> from(few);
        std::vector<size_t> sizes(few, unit);
        for (size_t i = 0; i < few; i++) to[i] = device + i * unit, from[i] = pinned + rows[i] * (size_t)16;
        cudaMemcpyAttributes attributes = {};
        attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
        size_t first = 0;
        report("rows copied as a batch", unit, 1, few * unit, few, time_of(stream, [&] {
                   CHECK(cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), few, &attributes, &first, 1,
                                              stream));
               }));
#endif
        /* Gathered by processors into a pinned buffer, then one copy of all. */
        char *staged = pinned; /* rows come from `plain`, so that the two do not overlap */
        for (int threads : {1, 4, 8})
            report("rows gathered by processors, one copy", unit, threads, GATHER_BYTES, count, time_of(stream, [&] {
                       std::vector<std::thread> all_threads;
                       for (int t = 0; t < threads; t++)
                           all_threads.emplace_back([&, t] {
                               for (size_t i = count * t / threads; i < count * (t + 1) / threads; i++)
                                   memcpy(staged + i * unit, plain.data() + rows[i] * (size_t)16 % plain.size(), unit);
                           });
                       for (auto &thread : all_threads) thread.join();
                       CHECK(cudaMemcpyAsync(device, staged, GATHER_BYTES, cudaMemcpyHostToDevice, stream));
                   }));
    }
}

static void measure_waiting(cudaStream_t stream, volatile unsigned *flags)
{
    enum { TIMES = 1000 };
    report("a kernel that does nothing, and its end", 0, 1, 0, 1,
           time_of(stream, [&] { nothing<<<1, 1, 0, stream>>>(); }));
    report("kernels that do nothing, queued", 0, TIMES, 0, TIMES, time_of(stream, [&] {
               for (int i = 0; i < TIMES; i++) nothing<<<1, 1, 0, stream>>>();
           }));
    /* A kernel waits for a number in pinned memory and answers there: host, device and back. */
    report("a kernel that waits on pinned memory answers", 0, 1, 0, TIMES, time_of(stream, [&] {
               flags[0] = flags[16] = 0;
               answer<<<1, 1, 0, stream>>>(flags, flags + 16, TIMES);
               for (unsigned i = 1; i <= TIMES; i++) {
                   flags[0] = i;
                   while (flags[16] != i) {}
               }
           }));
    /* The stream's own wait: the front end polls, no processor of the device is taken. */
    report("a stream that waits on pinned memory answers", 0, 1, 0, TIMES, time_of(stream, [&] {
               flags[0] = flags[16] = 0;
               for (unsigned i = 1; i <= TIMES; i++) {
                   CHECK(cuStreamWaitValue32(stream, (CUdeviceptr)flags, i, CU_STREAM_WAIT_VALUE_GEQ));
                   CHECK(cuStreamWriteValue32(stream, (CUdeviceptr)(flags + 16), i, 0));
                   flags[0] = i;
                   while (flags[16] != i) {}
               }
           }));
}

int main(void)
{
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    int version = 0;
    CHECK(cudaRuntimeGetVersion(&version));
    printf("# nvcc -O3 -arch=native -o bench_link bench_link.cu -lcuda && ./bench_link: %s, %d multiprocessors, CUDA "
           "%d.%d\n",
           properties.name, properties.multiProcessorCount, version / 1000, version % 1000 / 10);
    printf("what,unit_bytes,width,gb_per_s,us_per_unit,us_least,us_most\n");
    cudaStream_t stream;
    char *pinned, *device;
    unsigned *rows;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaHostAlloc((void **)&pinned, HOST_BYTES, cudaHostAllocMapped));
    memset(pinned, 1, HOST_BYTES);
    CHECK(cudaMalloc((void **)&device, LARGEST));
    CHECK(cudaMalloc((void **)&rows, GATHER_BYTES / 128 * sizeof *rows));
    measure_copies(stream, pinned, device);
    measure_rows(stream, pinned, device, rows);
    measure_waiting(stream, (volatile unsigned *)pinned);
    return 0;
}
