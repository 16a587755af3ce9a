// Posteriors of a block on their way out, beside the next block: from [variable] [case] [state] to the answers of all rows,
// [target] [row] [state], which lie in memory of the host.

// its: the record of the block itself, because `run` is that of the next one by now. A target has in `targets` where its
// posterior comes from, its row there, its states, and those of all targets before. Number: format of the answers, which
// is single where only doubtful rows are computed in double.
template <class Number> __device__ __forceinline__ void write_posteriors(const Run *its) {
    const index_t *rows = its->rows;
    for (int n = blockIdx.x; n < its->asked; n += gridDim.x) {
        const int *target = its->targets + TARGET_COLUMNS * n;
        const int source = target[0], row = target[1], size = target[2];
        const real *found = its->posteriors + row * its->cases;
        const short *states = its->states + row * its->cases;
        Number *out = static_cast<Number *>(its->answers) + target[3] * its->answered;
        // Whole lines of the bus for every warp, wherever rows follow each other.
        const int shift = (int)((size_t)(out + rows[0] * size) / sizeof(Number) % 32);
        const index_t numbers = its->filled * size;
#pragma unroll 4
        for (index_t k = (index_t)threadIdx.x - shift; k < numbers; k += blockDim.x) {
            if (k < 0) continue;
            const int b = (int)((unsigned)k / (unsigned)size), e = (int)((unsigned)k % (unsigned)size);
            real value;
            if (source == FOUND) value = found[k];
            else if (source == OBSERVED_STATE) value = states[b] == e ? 1 : 0;
            else value = its->settled[row + e];
            out[rows[b] * size + e] = (Number)value;
        }
    }
}

extern "C" __global__ void __launch_bounds__(WRITE_THREADS) write_single(const Run *its) { write_posteriors<float>(its); }

extern "C" __global__ void __launch_bounds__(WRITE_THREADS) write_double(const Run *its) { write_posteriors<double>(its); }
