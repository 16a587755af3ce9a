// Passes over stored clique tables on a GPU, in plain numbers or logarithms; agrees with `junctor_kernels.tables.stored`.
//
//     scatter_reduce   multiplies the entries of a chunk by their separator entries and sums runs of neighbouring entries,
//                      in one way over it: loads and stores of 128 bits, neighbouring threads at neighbouring addresses.
//                      A block takes a span of the chunk: many short runs, or a part of a long one.
//     gather_reduce    sums for a separator whose variables are not the most significant ones.
//     finish           adds up the parts of sums that several blocks share, always in one order.
//     settle           divides by what came the other way, and finds the largest entry of a message.
//     permute          brings a table into another order of its variables.
//
// Every launch does any number of tasks; `starts` has the first block of each. A message is stored as it was summed; whoever
// reads it multiplies by the power of two that brings its largest entry into [0.5, 1), or brings its logarithms about 0.
//
// In the source come first `#define DOUBLE` and `#define LOGS`, or nothing, then the constants of `stored_tasks.py` as an
// enum, then numbers.cu and algebra.cu.

// Entries along an axis, and how far one of them moves.
struct Axis {
    unsigned size, step;
};

// The fields of tasks, 8 bytes each, in the order of `stored_tasks.py`.
struct Factor {
    const real *values;
    const word *largest;
    index_t first_axis, axes;
};

struct Scatter {
    const real *source;
    real *target, *sums;
    index_t first_factor, factors, entries, run, span, lanes, pieces, adds;
};

struct Gather {
    const real *table;
    real *sums;
    index_t kept, out, kept_axes, eliminated, eliminated_axes, entries, terms, width, near_terms, pieces, adds;
};

struct Finish {
    const real *parts;
    real *sums;
    index_t out, out_axes, entries, run, span, lanes, pieces, adds;
};

struct Settle {
    real *values;
    const real *old;
    const word *old_largest;
    word *largest;
    index_t entries;
};

struct Permute {
    const real *source;
    real *target;
    const index_t *swaps;
    index_t count, entries;
};

struct alignas(16) Line {
    real at[WIDTH];
};

// The task that a block belongs to; `block` becomes its number there.
__device__ __forceinline__ int task_of(const int *starts, int tasks, unsigned &block) {
    int low = 0, high = tasks - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if ((unsigned)starts[middle] <= block) low = middle;
        else high = middle - 1;
    }
    block -= starts[low];
    return low;
}

// Where an index, counted along axes from the innermost on, leads.
__device__ __forceinline__ unsigned walk(const Axis *axes, int count, unsigned index) {
    unsigned at = 0;
    for (int a = 0; a < count - 1; a++) {
        unsigned rest = index / axes[a].size;
        at += (index - rest * axes[a].size) * axes[a].step;
        index = rest;
    }
    return count ? at + index * axes[count - 1].step : 0;
}

// Sums of threads in shared memory, where nothing may be constructed.
typedef real Room[sizeof(Sum) / sizeof(real)];

// The sum of the thread so many lanes above.
__device__ __forceinline__ Sum from_above(const Sum &sum, int offset, int width) {
    Sum other;
#ifdef LOGS
    other.most = __shfl_down_sync(~0u, sum.most, offset, width);
    other.rest = __shfl_down_sync(~0u, sum.rest, offset, width);
#else
    other.total = __shfl_down_sync(~0u, sum.total, offset, width);
#endif
    return other;
}

// The sum over neighbouring threads, `lanes` (a power of two) of them; the first one of each group gets it.
__device__ __forceinline__ Sum group_sum(Sum sum, int lanes, Sum *shared) {
    int width = lanes < 32 ? lanes : 32;
    for (int offset = width / 2; offset; offset /= 2) sum.add(from_above(sum, offset, width));
    if (lanes <= 32) return sum;
    int warp = threadIdx.x / 32;
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[warp] = sum;
    __syncthreads();
    if (threadIdx.x % lanes == 0)
        for (int other = 1; other < lanes / 32; other++) sum.add(shared[warp + other]);
    return sum;
}

__device__ __forceinline__ void put(real *at, const Sum &sum, bool adds) { *at = adds ? sum_of(*at, sum.value()) : sum.value(); }

// The entries from `k` on (a multiple of WIDTH) that lie in [low, high), multiplied by all factors and stored; of others
// nothing.
__device__ __forceinline__ Line multiplied(const Scatter &task, const Factor *factors, const Axis *axes, unsigned k, unsigned low,
                                           unsigned high, bool &flushed) {
    Line line = *reinterpret_cast<const Line *>(task.source + k);
#pragma unroll
    for (int v = 0; v < WIDTH; v++)
        if (k + v < low || k + v >= high) line.at[v] = EMPTY_SUM;
    for (int f = 0; f < task.factors; f++) {
        const Factor factor = factors[task.first_factor + f];
        const Axis *along = axes + factor.first_axis;
        const Axis inner = along[0];
        const int outer = (int)factor.axes - 1;
        const real scale = scaling(*factor.largest);
        unsigned row = k / inner.size, digit = k - row * inner.size;
        const real *values = factor.values + walk(along + 1, outer, row);
#pragma unroll
        for (int v = 0; v < WIDTH; v++) {
            if (k + v < high) {
                if (digit == inner.size) {
                    digit = 0;
                    values = factor.values + walk(along + 1, outer, ++row);
                }
                const real by = values[digit++ * inner.step], product = combine(line.at[v], combine(by, scale));
                flushed |= !LOSSLESS && line.at[v] > 0 && by > 0 && product < (real)TINY;
                line.at[v] = product;
            }
        }
    }
    if (!task.target) return line;
    if (k >= low && k + WIDTH <= high) *reinterpret_cast<Line *>(task.target + k) = line;
    else
        for (int v = 0; v < WIDTH; v++)
            if (k + v >= low && k + v < high) task.target[k + v] = line.at[v];
    return line;
}

// Where the sum of the part of run `s` that lies in the span from `begin` on belongs.
__device__ __forceinline__ real *part_of(const Scatter &task, unsigned s, unsigned begin) {
    if (task.pieces == 1) return task.sums + s;
    return task.sums + s * task.pieces + begin / (unsigned)task.span - s * (unsigned)task.run / (unsigned)task.span;
}

// Runs that are as long as a span or longer: threads add up what they multiply.
__device__ __forceinline__ void long_runs(const Scatter &task, const Factor *factors, const Axis *axes, unsigned begin, unsigned end,
                                          Sum *shared, bool &flushed) {
    const unsigned run = (unsigned)task.run;
    for (unsigned k = begin; k < end;) {
        unsigned s = k / run, stop = end - k < run - (k - s * run) ? end : (s + 1) * run;
        Sum total;
#pragma unroll 2
        for (unsigned at = k / WIDTH * WIDTH + threadIdx.x * WIDTH; at < stop; at += THREADS * WIDTH) {
            Line line = multiplied(task, factors, axes, at, k, stop, flushed);
#pragma unroll
            for (int v = 0; v < WIDTH; v++) total.add(line.at[v]);
        }
        if (task.sums) {
            total = group_sum(total, THREADS, shared);
            if (threadIdx.x == 0) put(part_of(task, s, begin), total, task.adds);
        }
        k = stop;
    }
}

// Several runs in a span: they are summed from shared memory, by `lanes` threads each.
__device__ __forceinline__ void short_runs(const Scatter &task, const Factor *factors, const Axis *axes, unsigned begin, unsigned end,
                                           real *tile, Sum *shared, bool &flushed) {
    const unsigned run = (unsigned)task.run, lanes = (unsigned)task.lanes;
    for (unsigned k = begin + threadIdx.x * WIDTH; k < end; k += THREADS * WIDTH)
        *reinterpret_cast<Line *>(tile + (k - begin)) = multiplied(task, factors, axes, k, begin, end, flushed);
    __syncthreads();
    const unsigned first = begin / run, last = (end - 1) / run, group = threadIdx.x / lanes, lane = threadIdx.x % lanes;
    for (unsigned s0 = first; s0 <= last; s0 += THREADS / lanes) {
        unsigned s = s0 + group, low = s * run, high = low + run < end ? low + run : end;
        Sum total;
        if (s <= last)
            for (unsigned k = (low > begin ? low : begin) + lane; k < high; k += lanes) total.add(tile[k - begin]);
        total = group_sum(total, lanes, shared);
        if (lane == 0 && s <= last) put(part_of(task, s, begin), total, task.adds);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    scatter_reduce(const Scatter *tasks, const int *starts, int count, const Factor *factors, const Axis *axes, int *lost) {
    __shared__ Line tile[TILE / WIDTH];
    __shared__ Room room[THREADS / 32];
    Sum *shared = reinterpret_cast<Sum *>(room);
    unsigned block = blockIdx.x;
    const Scatter task = tasks[task_of(starts, count, block)];
    const unsigned entries = (unsigned)task.entries, span = (unsigned)task.span;
    const unsigned begin = block * span, end = entries - begin < span ? entries : begin + span;
    bool flushed = false;
    if (task.lanes) short_runs(task, factors, axes, begin, end, tile->at, shared, flushed);
    else long_runs(task, factors, axes, begin, end, shared, flushed);
    if (flushed) *lost = 1;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gather_reduce(const Gather *tasks, const int *starts, int count, const Factor *, const Axis *axes, int *) {
    __shared__ Room room[THREADS];
    Sum *shared = reinterpret_cast<Sum *>(room);
    unsigned block = blockIdx.x;
    const Gather task = tasks[task_of(starts, count, block)];
    const unsigned width = (unsigned)task.width, lanes = THREADS / width, pieces = (unsigned)task.pieces;
    const unsigned piece = block % pieces, thread = threadIdx.x;
    const unsigned s = block / pieces * width + (task.near_terms ? thread / lanes : thread % width);
    const unsigned lane = task.near_terms ? thread % lanes : thread / width;
    const unsigned terms = (unsigned)task.terms, part = (terms + pieces - 1) / pieces;
    const unsigned first = piece * part, last = terms - first < part ? terms : first + part;
    const bool mine = s < task.entries;
    Sum total;
    if (mine && first < terms) {
        const real *table = task.table + walk(axes + task.kept, (int)task.kept_axes, s);
        for (unsigned r = first + lane; r < last; r += lanes)
            total.add(table[walk(axes + task.eliminated, (int)task.eliminated_axes, r)]);
    }
    if (task.near_terms) total = group_sum(total, lanes, shared);
    else {
        shared[thread] = total;
        for (unsigned half = lanes / 2; half; half /= 2) {
            __syncthreads();
            if (lane < half) shared[thread].add(shared[thread + half * width]);
        }
        total = shared[thread];
    }
    if (mine && lane == 0) {
        if (pieces == 1) put(task.sums + walk(axes + task.out, (int)task.kept_axes, s), total, task.adds);
        else task.sums[s * pieces + piece] = total.value();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    finish(const Finish *tasks, const int *starts, int count, const Factor *, const Axis *axes, int *) {
    __shared__ Room room[THREADS / 32];
    Sum *shared = reinterpret_cast<Sum *>(room);
    unsigned block = blockIdx.x;
    const Finish task = tasks[task_of(starts, count, block)];
    const unsigned lanes = (unsigned)task.lanes, lane = threadIdx.x % lanes;
    const unsigned s = block * (THREADS / lanes) + threadIdx.x / lanes;
    const bool mine = s < task.entries;
    Sum total;
    if (mine) {
        unsigned parts = (unsigned)task.pieces, run = (unsigned)task.run, span = (unsigned)task.span;
        // A run need not touch as many spans as the longest way to lie does.
        if (run) parts = (s * run + run - 1) / span - s * run / span + 1;
        for (unsigned n = lane; n < parts; n += lanes) total.add(task.parts[s * task.pieces + n]);
    }
    total = group_sum(total, lanes, shared);
    if (mine && lane == 0) put(task.sums + walk(axes + task.out, (int)task.out_axes, s), total, task.adds);
}

__device__ __forceinline__ real ratio(real one, real other) {
#ifdef LOGS
    return one - other;
#else
    return one / other;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
    settle(const Settle *tasks, const int *starts, int count, const Factor *, const Axis *, int *lost) {
    unsigned block = blockIdx.x;
    const Settle task = tasks[task_of(starts, count, block)];
    const unsigned s = block * THREADS + threadIdx.x;
    real value = s < task.entries ? task.values[s] : EMPTY_SUM;
    if (task.old && s < task.entries) {
        const real old = task.old[s], scaled = combine(old, scaling(*task.old_largest)), sum = value;
        // 0 / 0 = 0: what was impossible before stays so.
        value = old > EMPTY_SUM ? ratio(sum, scaled) : EMPTY_SUM;
        if (!LOSSLESS && ((old > 0 && scaled < (real)TINY) || (sum > 0 && old > 0 && value < (real)TINY))) *lost = 1;
        task.values[s] = value;
    }
    for (int offset = 16; offset; offset /= 2) {
        real other = __shfl_down_sync(~0u, value, offset, 32);
        value = other > value ? other : value;
    }
    if (threadIdx.x % 32 == 0 && (LOSSLESS || value > 0)) atomicMax(task.largest, rank(value));
}

// Where swaps take an entry: what is below the lower position stays, the digit of the upper one comes down there, what lies
// between and the digit of the lower one are worth as much more as the size of the lower position has changed.
template <class T> __device__ __forceinline__ T moved(const index_t *swaps, int count, T index) {
    for (int n = 0; n < count; n++) {
        const T lower = (T)swaps[5 * n], lower_size = (T)swaps[5 * n + 1], upper = (T)swaps[5 * n + 2];
        const T upper_size = (T)swaps[5 * n + 3], above = (T)swaps[5 * n + 4];
        const T below = index % lower, a = index / lower % lower_size, b = index / upper % upper_size;
        const T between = index % upper - below - a * lower;
        index = index - index % above + (between + a * upper) / lower_size * upper_size + b * lower + below;
    }
    return index;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    permute(const Permute *tasks, const int *starts, int count, const Factor *, const Axis *, int *) {
    unsigned block = blockIdx.x;
    const Permute task = tasks[task_of(starts, count, block)];
    const index_t k = (index_t)block * THREADS + threadIdx.x;
    if (k >= task.entries) return;
    // 32-bit division is several times as fast; `above` is at most the number of entries.
    const index_t from = task.entries >> 32 ? moved<unsigned long long>(task.swaps, (int)task.count, k)
                                            : moved<unsigned>(task.swaps, (int)task.count, (unsigned)k);
    task.target[k] = task.source[from];
}
