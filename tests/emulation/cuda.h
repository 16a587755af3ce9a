// Enough of CUDA to run the kernels on a CPU: a thread of a block is a fiber, with a stack of its own. They take turns
// on one thread of the machine: whoever waits lets the others go on, in another order each time.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <setjmp.h>
#include <ucontext.h>

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

enum { STACK = 1 << 18 };

static void let_others_go_on();

struct Barrier {
    int size = 0, arrived = 0;
    unsigned turn = 0;

    void arrive_and_wait() {
        const unsigned mine = turn;
        if (++arrived == size) arrived = 0, turn++;
        while (turn == mine) let_others_go_on();
    }
};

struct Warp {
    Barrier barrier;
    // What its threads exchange.
    double lanes[32];
};

struct Fiber {
    Index thread, block;
    Barrier *everyone = nullptr;
    Warp *warp = nullptr;
    std::function<void()> work;
    bool begun = false, ended = false;
    jmp_buf here;
    // Not cleared: most of it is never touched.
    std::unique_ptr<char[]> stack{new char[STACK]};
};

static Fiber nobody, *self = &nobody;
static jmp_buf scheduler;
static Index blockDim, gridDim;

#define threadIdx (self->thread)
#define blockIdx (self->block)

__attribute__((noinline)) static void let_others_go_on() {
    if (!_setjmp(self->here)) _longjmp(scheduler, 1);
}

// A fiber lives as long as the library, and takes one piece of work after the other.
static void live() {
    for (;;) {
        self->work();
        self->ended = true;
        let_others_go_on();
    }
}

__attribute__((noinline)) static void go_on(Fiber &fiber) {
    self = &fiber;
    if (_setjmp(scheduler)) return;
    if (fiber.begun) _longjmp(fiber.here, 1);
    fiber.begun = true;
    ucontext_t start;
    getcontext(&start);
    start.uc_stack.ss_sp = fiber.stack.get(), start.uc_stack.ss_size = STACK, start.uc_link = nullptr;
    makecontext(&start, live, 0);
    setcontext(&start);
}

// Does the work of so many fibers until all have ended. Whoever forgets a barrier meets what others have not written.
static void run_fibers(int count, const std::function<void(int, Fiber &)> &prepare) {
    static std::vector<std::unique_ptr<Fiber>> fibers;
    static std::minstd_rand chance;
    while ((int)fibers.size() < count) fibers.push_back(std::make_unique<Fiber>());
    std::vector<Fiber *> left;
    for (int n = 0; n < count; n++) {
        left.push_back(fibers[n].get());
        left[n]->ended = false;
        prepare(n, *left[n]);
    }
    while (!left.empty()) {
        std::shuffle(left.begin(), left.end(), chance);
        for (Fiber *each : left) go_on(*each);
        std::erase_if(left, [](Fiber *each) { return each->ended; });
    }
    self = &nobody;
}

static void __syncthreads() { self->everyone->arrive_and_wait(); }
static void __syncwarp() { self->warp->barrier.arrive_and_wait(); }
#define __nanosleep(n) let_others_go_on()

template <class T> static T __shfl_xor_sync(unsigned, T value, int mask) {
    const int lane = threadIdx.x % 32;
    self->warp->lanes[lane] = value;
    __syncwarp();
    const T other = (T)self->warp->lanes[lane ^ mask];
    __syncwarp();
    return other;
}

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

// Does a kernel whose threads never wait for each other, one thread after the other.
template <class Kernel> static void in_turn(int blocks, int threads, Kernel kernel) {
    blockDim.x = threads, gridDim.x = blocks, blockIdx.y = 0, gridDim.y = 1;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) kernel();
}

// Does a kernel in all threads of some blocks at once.
template <class Kernel> static void at_once(const std::vector<Index> &blocks, int threads, Kernel kernel) {
    const int count = (int)blocks.size() * threads;
    std::vector<Barrier> all(blocks.size(), Barrier{threads});
    std::vector<Warp> warps((threads + 31) / 32 * blocks.size());
    for (int n = 0; n < count; n++) warps[n / threads * ((threads + 31) / 32) + n % threads / 32].barrier.size++;
    run_fibers(count, [&](int n, Fiber &fiber) {
        fiber.thread.x = n % threads, fiber.block = blocks[n / threads];
        fiber.everyone = &all[n / threads];
        fiber.warp = &warps[n / threads * ((threads + 31) / 32) + n % threads / 32];
        fiber.work = kernel;
    });
}

// Does a kernel in all threads of all blocks, one block after the other.
template <class Kernel> static void for_all(int blocks_x, int blocks_y, int threads, Kernel kernel) {
    blockDim.x = threads, gridDim.x = blocks_x, gridDim.y = blocks_y;
    for (int block = 0; block < blocks_x * blocks_y; block++)
        at_once({{block % blocks_x, block / blocks_x}}, threads, kernel);
}
