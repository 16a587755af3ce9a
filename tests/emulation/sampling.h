// What `sampling.cu` needs beside `cuda.h`.
#include <bit>

using std::max;

struct int4 {
    int x, y, z, w;
};
struct uint4 {
    unsigned x, y, z, w;
};
struct double2 {
    double x, y;
};

static unsigned dynamic_shared[1 << 16];

static unsigned __umulhi(unsigned one, unsigned other) { return (unsigned)((unsigned long long)one * other >> 32); }

static unsigned __ballot_sync(unsigned, int bit) {
    static unsigned words[32];
    const int number = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) __atomic_store_n(&words[number], 0, __ATOMIC_SEQ_CST);
    __syncwarp();
    if (bit) __atomic_fetch_or(&words[number], 1u << lane, __ATOMIC_SEQ_CST);
    __syncwarp();
    const unsigned word = words[number];
    __syncwarp();
    return word;
}

static unsigned long long __shfl_down_sync(unsigned, unsigned long long value, int offset) {
    static unsigned long long slots[1024];
    slots[threadIdx.x] = value;
    __syncwarp();
    const unsigned long long other = threadIdx.x % 32 + offset < 32 ? slots[threadIdx.x + offset] : value;
    __syncwarp();
    return other;
}

template <class T> static T atomicAdd(T *at, T value) { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
template <class T> static T atomicOr(T *at, T value) { return __atomic_fetch_or(at, value, __ATOMIC_RELAXED); }
// ---
extern "C" void launch(const char *name, const Job *job, int blocks_x, int blocks_y, int threads) {
    using Kernel = void (*)(const Job);
    const struct {
        const char *name;
        Kernel kernel;
    } kernels[] = {
        {"simple_plain", simple_plain},       {"simple_logs", simple_logs},   {"wavefront_plain", wavefront_plain},
        {"wavefront_logs", wavefront_logs},   {"sum_plain", sum_plain},       {"sum_logs", sum_logs},
        {"score_plain", score_plain},         {"score_logs", score_logs},     {"update_plain", update_plain},
        {"update_logs", update_logs},         {"uniform_plain", uniform_plain}, {"uniform_logs", uniform_logs},
        {"gather", gather},                   {"several_plain", several_plain}, {"several_logs", several_logs},
        {"shape_plain", shape_plain},         {"shape_logs", shape_logs},
    };
    Kernel kernel = nullptr;
    for (const auto &each : kernels)
        if (!std::strcmp(each.name, name)) kernel = each.kernel;
    for_all(blocks_x, blocks_y, threads, [&] { kernel(*job); });
}
