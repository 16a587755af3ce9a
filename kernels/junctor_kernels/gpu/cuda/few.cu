// Few cases, down to one: a thread block does an item for all of them, its threads go over kept entries and terms.
//
// With so little to do a stage is mostly its beginning: blocks come into being and find out what their item is. So those of
// the next stage may begin as soon as all of this one have, and wait where they need its results.

__device__ __forceinline__ void let_the_next_stage_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_the_stage_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The kept entries [first, last) of a step for all cases, by a whole thread block; `split` threads share the terms of an
// entry. Neighbouring threads have neighbouring terms where `along` is set, neighbouring entries otherwise. K: the number
// of operands where it is known to the compiler, else 0. What is read before the wait is the same for every block of cases.
template <int K>
__device__ __forceinline__ void contract_few(
    const int *step, const int *operands, int first, int last, int split, bool along, Sum *partial) {
    const int *out = run.offsets + step[OUT];
    const int count = K ? K : step[COUNT];
    const int groups = blockDim.x / split, me = threadIdx.x;
    const int group = along ? me / split : me % groups, share = along ? me % split : me / groups;
    const int cases = (int)run.cases, entries = (last - first) * cases;
    const bool listed = step[STRIDE], scaled = operands[0] >= 0;
    for (int start = 0; start < entries; start += groups) {
        const int e = start + group, s = first + e / cases, b = e % cases;
        Sum sum;
        const int *span = run.span + step[SPAN] + s * step[STRIDE];
        if (e < entries) {
            const int *terms[K ? K : MOST_OPERANDS];
            int at[K ? K : MOST_OPERANDS];
            real by[K ? K : MOST_OPERANDS];
#pragma unroll
            for (int k = scaled ? 0 : 1; k < count; k++) {
                at[k] = run.offsets[operands[3 * k] + s];
                terms[k] = run.offsets + operands[3 * k + 1];
            }
            const int begin = span[0] + share, end = span[1];
            wait_for_the_stage_before();
#pragma unroll
            for (int k = scaled ? 0 : 1; k < count; k++) by[k] = scaling_of<1>(operands[3 * k + 2], b).at[0];
            for (int start = begin; start < end; start += RUN * split) {
                const int stop = start + RUN * split < end ? start + RUN * split : end;
                Sum part;
#pragma unroll 4
                for (int n = start; n < stop; n += split) {
                    const int r = listed ? run.terms[n] : n;
                    real x = scaled ? run.shared[at[0] + terms[0][r]] : (real)NEUTRAL;
#pragma unroll
                    for (int k = 1; k < count; k++)
                        x = combine(x, combine(run.arena[(index_t)(at[k] + terms[k][r]) * cases + b], by[k]));
                    part.add(x);
                }
                sum.add(part);
            }
        }
        if (split > 1) {
            partial[me] = sum;
            __syncthreads();
            for (int half = split / 2; half; half /= 2) {
                if (share < half) partial[me].add(partial[me + (along ? half : half * groups)]);
                __syncthreads();
            }
            sum = partial[me];
            __syncthreads();
        }
        if (e < entries && share == 0) {
            run.arena[(index_t)out[s] * cases + b] = sum.value();
            record(step[SLOT], b, sum.value());
        }
    }
}

// The same by a thread block, for one case after the other; always added up in the same order.
__device__ __forceinline__ void finish_together(Finding<1> *meeting) {
    const int me = threadIdx.x;
    for (index_t b = 0; b < run.cases; b++) {
        meeting[me] = finding<1>(b, me, blockDim.x);
        __syncthreads();
        for (int half = blockDim.x / 2; half; half /= 2) {
            if (me < half) meeting[me].add(meeting[me + half]);
            __syncthreads();
        }
        if (me == 0) meeting[0].write(run.found, b);
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(FEW_THREADS) propagate_few(int first) {
    __shared__ double room[SUMS * FEW_THREADS];
    Sum *partial = reinterpret_cast<Sum *>(room);
    const int *item = run.items + ITEM_COLUMNS * (first + blockIdx.x);
    const int *step = run.steps + STEP_COLUMNS * item[1];
    let_the_next_stage_begin();
    if (item[0] != CONTRACT) wait_for_the_stage_before();
    if (item[0] == MARGINAL) {
        if (threadIdx.x < 32)
            for (int chunk = 0; chunk < run.cases; chunk += 32)
                marginal<1>(step, item[2], chunk, run.cases - chunk < 32 ? run.cases - chunk : 32,
                            reinterpret_cast<real *>(room));
        return;
    }
    if (item[0] == FINISH) return finish_together(reinterpret_cast<Finding<1> *>(room));
    if (item[0] == MAKE && step[KIND] == SLICE) {
        const index_t rows = item[3] - item[2];
        for (index_t n = threadIdx.x; n < rows * run.cases; n += blockDim.x) {
            const int e = item[2] + (int)(n / run.cases);
            slice<1>(step, e, e + 1, n % run.cases);
        }
        return;
    }
    if (item[0] != CONTRACT) {
        for (index_t b = threadIdx.x; b < run.cases; b += blockDim.x) alone<1>(item, b);
        return;
    }
    // From the item rather than from the step: with few cases a stage is not much more than a chain of loads.
    const int *operands = run.operands + 3 * item[6];
    switch (item[7]) {
        case 2: return contract_few<2>(step, operands, item[2], item[3], item[4], item[5], partial);
        case 3: return contract_few<3>(step, operands, item[2], item[3], item[4], item[5], partial);
        default: return contract_few<0>(step, operands, item[2], item[3], item[4], item[5], partial);
    }
}

#ifdef MAXIMA
extern "C" __global__ void __launch_bounds__(TRACE_THREADS) trace_few(int) { trace_cases<1, 32>(); }
#endif
