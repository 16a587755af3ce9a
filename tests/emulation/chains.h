// What `viterbi.cu` needs beside `cuda.h`: all blocks of a grid at once, each with shared memory of its own.
#include <atomic>

enum { MOST_BLOCKS = 4, SHARED_BYTES = 1 << 18 };

#define SHARED(type, name, count)                                                                                      \
    alignas(64) static unsigned char name##_bytes[MOST_BLOCKS][(count) * sizeof(type)];                                \
    type *name = (type *)name##_bytes[blockIdx.x % MOST_BLOCKS]
#define DYNAMIC(type, name)                                                                                            \
    alignas(64) static unsigned char name##_bytes[MOST_BLOCKS][SHARED_BYTES];                                          \
    type *name = (type *)name##_bytes[blockIdx.x % MOST_BLOCKS]

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) double2 {
    double x, y;
};

static float __fmul_rn(float one, float other) { return one * other; }
static float __fadd_rn(float one, float other) { return one + other; }

template <class T> static T __ldg(const T *at) { return *at; }
template <class T> static T __ldcs(const T *at) { return *at; }
template <class T> static T __ldcg(const T *at) { return *at; }
static void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

template <class T> static T atomicAdd(T *at, T value) { return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST); }
template <class T> static T atomicMin(T *at, T value) {
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (old > value && !__atomic_compare_exchange_n(at, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}
// ---
extern "C" void launch(const char *name, int blocks, int threads, const Work *work) {
    using Kernel = void (*)(const Work);
#define BOTH_OF(name) {"forward_" #name, forward_##name}, {"backward_" #name, backward_##name}
    const std::pair<const char *, Kernel> kernels[] = {
#ifdef COUNTS
        {"operands", operands}, {"many_pairs", many_pairs}, {"entries", entries}, {"steps", steps},
#elif defined(SUMS)
        {"begin", begin}, {"normalise", normalise}, BOTH_OF(few_1), BOTH_OF(few_2), BOTH_OF(few_4), BOTH_OF(few_8),
        BOTH_OF(many_2), BOTH_OF(many_4), BOTH_OF(sparse),
#ifndef DOUBLE
        BOTH_OF(many_8),
#endif
#else
        {"begin", begin}, {"few_1", few_1}, {"few_2", few_2}, {"few_4", few_4}, {"few_8", few_8},
        {"many_2", many_2}, {"many_4", many_4}, {"sparse_1", sparse_1}, {"sparse_32", sparse_32}, {"trace", trace},
#ifndef DOUBLE
        {"many_8", many_8},
#endif
#endif
    };
    Kernel kernel = nullptr;
    for (const auto &each : kernels)
        if (!std::strcmp(each.first, name)) kernel = each.second;
    if (!kernel) std::abort();
    gridDim.x = blocks, blockDim.x = threads;
    // Blocks that need not be there together take turns.
    for (int first = 0; first < blocks; first += MOST_BLOCKS) {
        std::vector<Index> here;
        for (int block = first; block < std::min<int>(first + MOST_BLOCKS, blocks); block++) here.push_back({block, 0});
        at_once(here, threads, [&] { kernel(*work); });
    }
}
