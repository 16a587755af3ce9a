// Contractions of one case on a GPU: threads go over kept entries, or over the terms of an entry; agrees with
// `junctor_kernels.entries`.
//
//     reduce_entries_K   a thread for some entries of a panel, each of which sums its own terms; K operands.
//     reduce_terms       a thread block for an entry, its threads share the terms.
//
// Offsets are separable twice: an entry lies in a panel and at a place inside it, a term in a far and a near part. So no
// table of offsets grows with a clique. In the source come first `#define DOUBLE` or nothing, then the constants of
// `entries_gpu.py` as an enum.

#ifdef DOUBLE
typedef double real;
typedef unsigned long long word;
#else
typedef float real;
typedef unsigned int word;
#endif

typedef long long index_t;

// One table: what its numbers are multiplied with, and where entries and terms lie in it.
struct Operand {
    const real *table;
    const index_t *panels;
    const int *places;
    const index_t *far;
    const int *near;
    double scale;
};

// Everything that a launch needs; 8 bytes a field, in the order of `entries_gpu.FIELDS`, then the operands.
struct Reduction {
    real *out;
    word *extremes;
    index_t entries, panel, near_terms, far_terms, operands;
    double power;
    index_t adds;
    Operand operand[MOST_OPERANDS];
};

__device__ __forceinline__ word bits_of(real number) {
#ifdef DOUBLE
    return (word)__double_as_longlong(number);
#else
    return __float_as_uint(number);
#endif
}

// The largest entry and, as its complement, the smallest above zero: bits of numbers that are not negative are in order.
__device__ __forceinline__ void note(word *extremes, word largest, word smallest) {
    for (int offset = 16; offset; offset /= 2) {
        word other = __shfl_down_sync(~0u, largest, offset);
        largest = other > largest ? other : largest;
        other = __shfl_down_sync(~0u, smallest, offset);
        smallest = other > smallest ? other : smallest;
    }
    if (threadIdx.x % 32 == 0 && extremes) {
        if (largest > extremes[0]) atomicMax(extremes, largest);
        if (smallest > extremes[1]) atomicMax(extremes + 1, smallest);
    }
}

// What is smallest is found before it is added to others, and of the sum itself, so that a power of two cannot hide it.
__device__ __forceinline__ void finish(const Reduction &what, index_t entry, real sum, word &largest, word &smallest) {
    const real value = sum * (real)what.power;
    if (sum > 0 && ~bits_of(value) > smallest) smallest = ~bits_of(value);
    const real total = what.adds ? what.out[entry] + value : value;
    what.out[entry] = total;
    if (bits_of(total) > largest) largest = bits_of(total);
}

// K operands, known when compiled, or any number of them (0).
template <int K> __device__ __forceinline__ void over_entries(const Reduction &what) {
    const int count = K ? K : (int)what.operands;
    const int tiles = (int)((what.panel + TILE - 1) / TILE);
    const index_t panels = what.entries / what.panel;
    const int first = (int)(blockIdx.x % tiles) * TILE + threadIdx.x;
    // Places are the same in all panels, so a block takes one tile of many of them.
    int place[K ? K : MOST_OPERANDS][EACH];
#pragma unroll
    for (int k = 0; k < count; k++)
#pragma unroll
        for (int v = 0; v < EACH; v++) {
            const int inside = first + v * THREADS;
            place[k][v] = what.operand[k].places[inside < what.panel ? inside : 0];
        }
    word largest = 0, smallest = 0;
    for (index_t panel = blockIdx.x / tiles; panel < panels; panel += gridDim.x / tiles) {
        // In double precision, so that rounding does not grow with the number of terms.
        double sum[EACH];
#pragma unroll
        for (int v = 0; v < EACH; v++) sum[v] = 0;
        for (index_t f = 0; f < what.far_terms; f++) {
            real part[EACH];
#pragma unroll
            for (int v = 0; v < EACH; v++) part[v] = 0;
            const real *here[K ? K : MOST_OPERANDS];
#pragma unroll
            for (int k = 0; k < count; k++)
                here[k] = what.operand[k].table + what.operand[k].panels[panel] + what.operand[k].far[f];
#pragma unroll 2
            for (int n = 0; n < what.near_terms; n++) {
                real product[EACH];
#pragma unroll
                for (int k = 0; k < count; k++) {
                    const real *row = here[k] + what.operand[k].near[n];
                    const real scale = (real)what.operand[k].scale;
#pragma unroll
                    for (int v = 0; v < EACH; v++) {
                        const real number = __ldg(row + place[k][v]) * scale;
                        product[v] = k ? product[v] * number : number;
                    }
                }
#pragma unroll
                for (int v = 0; v < EACH; v++) part[v] += product[v];
            }
#pragma unroll
            for (int v = 0; v < EACH; v++) sum[v] += part[v];
        }
#pragma unroll
        for (int v = 0; v < EACH; v++)
            if (first + v * THREADS < what.panel)
                finish(what, panel * what.panel + first + v * THREADS, (real)sum[v], largest, smallest);
    }
    note(what.extremes, largest, smallest);
}

// Kernels of their own, because registers are given out for the one that needs most.
#define REDUCE_ENTRIES(K) \
    extern "C" __global__ void __launch_bounds__(THREADS) reduce_entries_##K(const Reduction what) { over_entries<K>(what); }
REDUCE_ENTRIES(0)
REDUCE_ENTRIES(1)
REDUCE_ENTRIES(2)
REDUCE_ENTRIES(3)
REDUCE_ENTRIES(4)
REDUCE_ENTRIES(5)
REDUCE_ENTRIES(6)

extern "C" __global__ void __launch_bounds__(THREADS) reduce_terms(const Reduction what) {
    __shared__ double parts[THREADS];
    const index_t panel = blockIdx.x / what.panel;
    const int place = (int)(blockIdx.x % what.panel);
    double sum = 0;
    for (index_t r = threadIdx.x; r < what.far_terms * what.near_terms; r += THREADS) {
        real product = 1;
        for (int k = 0; k < what.operands; k++) {
            const Operand &each = what.operand[k];
            const index_t offset = each.panels[panel] + each.places[place] + each.far[r / what.near_terms];
            product *= each.table[offset + each.near[r % what.near_terms]] * (real)each.scale;
        }
        sum += product;
    }
    parts[threadIdx.x] = sum;
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    if (threadIdx.x < 32) {
        word largest = 0, smallest = 0;
        if (threadIdx.x == 0) finish(what, blockIdx.x, (real)parts[0], largest, smallest);
        note(what.extremes, largest, smallest);
    }
}
