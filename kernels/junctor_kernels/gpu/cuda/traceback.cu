// Explanations: the states of all variables, from the roots of a plan down, each step given what those above it fixed
// (Dawid 1992). The cases of a block that fills the device have a thread each; fewer share a warp, of which LANES threads
// go through the terms of a case.

// What the threads of one case have found: the first term with the largest sum.
struct Largest {
    real sum;
    int term;

    __device__ __forceinline__ void see(real its_sum, int its_term) {
        if (its_sum > sum || (its_sum == sum && its_term < term)) sum = its_sum, term = its_term;
    }

    template <int LANES> __device__ __forceinline__ void join() {
#pragma unroll
        for (int apart = 16; apart >= 32 / LANES; apart /= 2) {
            const real its_sum = __shfl_xor_sync(0xffffffffu, sum, apart);
            see(its_sum, __shfl_xor_sync(0xffffffffu, term, apart));
        }
    }
};

// The term of a step that case b takes. K: the number of operands where it is known to the compiler, else 0.
template <int V, int LANES, int K>
__device__ __forceinline__ int largest_term(const int *step, int terms, index_t b, int lane) {
    const int count = K ? K : step[1], *operands = run.traced + 4 * step[0], *kept = run.variables + 2 * step[2];
    const real *tables[K ? K : MOST_OPERANDS];
    const int *offsets[K ? K : MOST_OPERANDS];
    int length[K ? K : MOST_OPERANDS], at[K ? K : MOST_OPERANDS];
#pragma unroll
    for (int k = 0; k < count; k++) at[k] = operands[4 * k];
    for (int v = 0; v < step[3]; v++) {
        const int state = run.explained[kept[2 * v] * run.cases + b];
#pragma unroll
        for (int k = 0; k < count; k++) at[k] += run.offsets[operands[4 * k + 2] + v] * state;
    }
#pragma unroll
    for (int k = 0; k < count; k++) {
        const bool per_case = operands[4 * k + 1];
        length[k] = per_case ? (int)row_length<V>() : 1;
        tables[k] = per_case ? first_row<V>(b) + at[k] * row_length<V>() : run.shared + at[k];
        offsets[k] = run.offsets + operands[4 * k + 3];
    }
    // Where all terms are -inf, the first one.
    Largest largest = {EMPTY_SUM, lane ? terms : 0};
#pragma unroll 4
    for (int r = lane; r < terms; r += LANES) {
        real sum = 0;
#pragma unroll
        for (int k = 0; k < count; k++) sum += tables[k][(index_t)offsets[k][r] * length[k]];
        largest.see(sum, r);
    }
    largest.join<LANES>();
    return largest.term;
}

template <int V, int LANES>
__device__ __forceinline__ int term_of(const int *step, int terms, index_t b, int lane) {
    // Most steps have two or three operands; a few cases are not worth more code.
    if (LANES == 1 && step[1] == 2) return largest_term<V, LANES, 2>(step, terms, b, lane);
    if (LANES == 1 && step[1] == 3) return largest_term<V, LANES, 3>(step, terms, b, lane);
    return largest_term<V, LANES, 0>(step, terms, b, lane);
}

template <int V, int LANES> __device__ __forceinline__ void trace_back(index_t b, int lane) {
    for (int n = lane; n < run.seen_count; n += LANES)
        run.explained[run.seen[2 * n] * run.cases + b] = run.states[run.seen[2 * n + 1] * run.cases + b];
    for (int n = 0; n < run.trace_count; n++) {
        if (LANES > 1) __syncwarp();
        const int *step = run.trace + 6 * n, *gone = run.variables + 2 * step[4];
        int terms = 1;
        for (int v = 0; v < step[5]; v++) terms *= gone[2 * v + 1];
        int term = term_of<V, LANES>(step, terms, b, lane);
        if (lane) continue;
        for (int v = step[5] - 1; v >= 0; v--) {
            run.explained[gone[2 * v] * run.cases + b] = (short)(term % gone[2 * v + 1]);
            term /= gone[2 * v + 1];
        }
    }
}

// Threads next to each other have different cases: what they read is side by side.
template <int V, int LANES> __device__ __forceinline__ void trace_cases() {
    const int cases = 32 / LANES, thread = threadIdx.x % 32;
    const index_t b = ((index_t)blockIdx.x * blockDim.x + threadIdx.x) / 32 * cases + thread % cases;
    if (b < run.cases) trace_back<V, LANES>(b, thread / cases);
}
