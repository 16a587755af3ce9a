// Enough of CUDA to run the kernels on a CPU: every thread of a block is a thread, because they wait for each other.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __constant__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __shared__ static

struct Index {
    int x = 0, y = 0;
};

static thread_local Index threadIdx;
static thread_local std::barrier<> *everyone, *warp;
static Index blockIdx, blockDim, gridDim;

static void __syncthreads() { everyone->arrive_and_wait(); }
static void __syncwarp() { warp->arrive_and_wait(); }

template <class To, class From> static To same_bits(From from) {
    To to;
    static_assert(sizeof to == sizeof from);
    std::memcpy(&to, &from, sizeof to);
    return to;
}

static float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
static unsigned __float_as_uint(float number) { return same_bits<unsigned>(number); }
static double __longlong_as_double(long long bits) { return same_bits<double>(bits); }
static long long __double_as_longlong(double number) { return same_bits<long long>(number); }

static double __dmul_rn(double one, double other) { return one * other; }
static double __dadd_rn(double one, double other) { return one + other; }

template <class T> static T atomicMax(T *at, T value) {
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (old < value && !__atomic_compare_exchange_n(at, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}

// Does a kernel whose threads never wait for each other in one thread.
template <class Kernel> static void in_turn(int blocks, int threads, Kernel kernel) {
    blockDim.x = threads, gridDim.x = blocks, blockIdx.y = 0, gridDim.y = 1;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) kernel();
}

// Does a kernel in all threads of all blocks, one block after the other.
template <class Kernel> static void for_all(int blocks_x, int blocks_y, int threads, Kernel kernel) {
    blockDim.x = threads, gridDim.x = blocks_x, gridDim.y = blocks_y;
    std::barrier<> barrier(threads);
    std::vector<std::unique_ptr<std::barrier<>>> warps;
    for (int n = 0; n < threads; n += 32) warps.push_back(std::make_unique<std::barrier<>>(std::min(32, threads - n)));
    std::vector<std::thread> pool;
    for (int n = 0; n < threads; n++)
        pool.emplace_back([&, n] {
            threadIdx.x = n, everyone = &barrier, warp = warps[n / 32].get();
            for (int block = 0; block < blocks_x * blocks_y; block++) {
                if (n == 0) blockIdx.x = block % blocks_x, blockIdx.y = block / blocks_x;
                __syncthreads();
                kernel();
                __syncthreads();
            }
        });
    for (auto &thread : pool) thread.join();
}
