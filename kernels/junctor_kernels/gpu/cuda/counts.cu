// Expected counts of hidden Markov models, bit by bit those of counts_cpu.py: rows of forward_backward.cu, whose forward
// and backward rows have stayed, become operands; these are multiplied in runs of RUN pairs of steps, added with what each
// addition rounds off. In double precision only.

enum { WARPS = THREADS / 32, MANY = SIDE * SIDE, SPAN = SIDE * 4, PIECE = 8 };

// Rows of all ticks have numbers; `tick` and `slot` say which they are. `before`: of the pair of steps that begins with a
// row, `behind`: of the one that ends with it, or -1. `left` and `right` are [pairs][stride], the operands of the products;
// `gains` are the posteriors times weights, [rows][stride], which `order` puts in `bins` bins, the last one for the start,
// each from `begins` on. Sums are two tables each, the second one of what rounding took. `entry_rows` and `entry_columns`
// are the states before and after of each entry of a sparse matrix.
struct Work {
    const double *trellis, *sums, *emissions, *weights;
    const int *which, *tick, *slot, *before, *behind, *order, *entry_rows, *entry_columns;
    const long long *begins;
    double *left, *right, *gains, *totals, *pair_sums, *step_sums;
    unsigned long long *barrier;
    long long states, stride, most, rows, pairs, bins, entry_count, first, last, kept, cached;
};

static __device__ __forceinline__ double over_lanes(double x) {
    for (int offset = 16; offset; offset /= 2) x = __dadd_rn(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// A warp makes the operands of a row.
extern "C" __global__ void __launch_bounds__(THREADS) operands(const Work w) {
    const int lane = threadIdx.x % 32;
    for (long long n = (long long)blockIdx.x * WARPS + threadIdx.x / 32; n < w.rows; n += (long long)gridDim.x * WARPS) {
        const int slot = w.slot[n], before = w.before[n], behind = w.behind[n];
        const double *alpha = w.trellis + n * w.stride, *e = w.emissions + w.which[n] * w.stride;
        const double *beta = w.sums + (w.tick[n] * w.most + slot) * w.stride;
        double total = 0, top = 0;
        for (long long k = lane; k < w.states; k += 32) {
            // Where no step follows, the backward row is 1.
            const double b = before < 0 ? 1 : beta[k], x = __dmul_rn(b, e[k]);
            total = __dadd_rn(total, __dmul_rn(alpha[k], b));
            top = x > top ? x : top;
        }
        total = over_lanes(total);
        for (int offset = 16; offset; offset /= 2) {
            const double other = __shfl_xor_sync(0xffffffffu, top, offset);
            top = other > top ? other : top;
        }
        int power = 0;
        if (top > 0) frexp(top, &power);
        const double scale = ldexp(1.0, -power), factor = w.weights[slot] / total;
        for (long long k = lane; k < w.stride; k += 32) {
            const double b = k < w.states ? (before < 0 ? 1 : beta[k]) : 0, a = alpha[k];
            w.gains[n * w.stride + k] = __dmul_rn(__dmul_rn(a, b), factor);
            if (before >= 0) w.left[before * w.stride + k] = __dmul_rn(a, factor);
            if (behind >= 0) w.right[behind * w.stride + k] = __dmul_rn(__dmul_rn(b, e[k]), scale);
        }
        if (lane == 0) w.totals[n] = total;
    }
}

// A block has SPAN x SPAN pairs of states, 4 x 4 a thread, and PIECE pairs of steps of both operands in shared memory.
extern "C" __global__ void __launch_bounds__(SIDE * SIDE) many_pairs(const Work w) {
    SHARED(double, shared, 2 * PIECE * SPAN);
    const long long tiles = (w.stride + SPAN - 1) / SPAN, half = w.stride * w.stride;
    const int y = threadIdx.x / SIDE * 4, x = threadIdx.x % SIDE * 4;
    for (long long tile = blockIdx.x; tile < tiles * tiles; tile += gridDim.x) {
        const long long i = tile / tiles * SPAN, j = tile % tiles * SPAN;
        Sum sums[4][4];
        for (long long run = 0; run < w.pairs; run += RUN) {
            const long long end = run + RUN < w.pairs ? run + RUN : w.pairs;
            double total[4][4];
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++) total[r][c] = 0;
            for (long long first = run; first < end; first += PIECE) {
                __syncthreads();
                for (int n = threadIdx.x; n < PIECE * SPAN; n += MANY) {
                    const long long pair = first + n / SPAN, one = i + n % SPAN, other = j + n % SPAN;
                    shared[n] = pair < end && one < w.stride ? w.left[pair * w.stride + one] : 0;
                    shared[PIECE * SPAN + n] = pair < end && other < w.stride ? w.right[pair * w.stride + other] : 0;
                }
                __syncthreads();
#pragma unroll
                for (int n = 0; n < PIECE; n++) {
                    const double *one = shared + n * SPAN + y, *other = shared + (PIECE + n) * SPAN + x;
#pragma unroll
                    for (int r = 0; r < 4; r++)
#pragma unroll
                        for (int c = 0; c < 4; c++) total[r][c] = fma(one[r], other[c], total[r][c]);
                }
            }
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++) sums[r][c].add(total[r][c]);
        }
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (i + y + r < w.stride && j + x + c < w.stride)
                    sums[r][c].join(w.pair_sums + (i + y + r) * w.stride + j + x + c, half);
    }
}

// A warp has an entry of a sparse matrix; its lanes are those of the partial sums there.
extern "C" __global__ void __launch_bounds__(THREADS) entries(const Work w) {
    const int lane = threadIdx.x % 32;
    const long long step = (long long)gridDim.x * WARPS;
    for (long long n = (long long)blockIdx.x * WARPS + threadIdx.x / 32; n < w.entry_count; n += step) {
        const double *left = w.left + w.entry_rows[n], *right = w.right + w.entry_columns[n];
        Sum sums;
        for (long long run = 0; run < w.pairs; run += RUN) {
            double total = 0;
            for (long long pair = run + lane; pair < run + RUN && pair < w.pairs; pair += 32)
                total = fma(left[pair * w.stride], right[pair * w.stride], total);
            total = __dadd_rn(total, __shfl_xor_sync(0xffffffffu, total, 8));
            total = __dadd_rn(total, __shfl_xor_sync(0xffffffffu, total, 16));
            for (int offset = 4; offset; offset /= 2) total = __dadd_rn(total, __shfl_xor_sync(0xffffffffu, total, offset));
            sums.add(total);
        }
        if (lane == 0) sums.join(w.pair_sums + n, w.entry_count);
    }
}

// A thread adds up one state's posteriors of one symbol, or of the first steps.
extern "C" __global__ void __launch_bounds__(THREADS) steps(const Work w) {
    const long long items = w.bins * w.stride, step = (long long)gridDim.x * blockDim.x;
    for (long long n = (long long)blockIdx.x * blockDim.x + threadIdx.x; n < items; n += step) {
        const long long bin = n / w.stride, k = n % w.stride;
        Sum sums;
        for (long long at = w.begins[bin]; at < w.begins[bin + 1]; at++) sums.add(w.gains[w.order[at] * w.stride + k]);
        sums.join(w.step_sums + n, items);
    }
}
