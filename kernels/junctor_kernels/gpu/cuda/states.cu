// Explanations of a block on their way out, beside the next block.

// From [variable] [case] to the answers of all rows, [target] [row], which lie in memory of the host. its: the record of
// the block itself, because `run` is that of the next one by now. `targets` are variables here.
extern "C" __global__ void __launch_bounds__(WRITE_THREADS, WRITE_SHARE) write_states(const Run *its) {
    const int pieces = (int)((its->filled + WRITE_CASES - 1) / WRITE_CASES);
    for (int piece = blockIdx.x; piece < its->asked * pieces; piece += gridDim.x) {
        const int target = piece / pieces, first = piece % pieces * WRITE_CASES;
        const int cases = its->filled - first < WRITE_CASES ? (int)its->filled - first : WRITE_CASES;
        const short *states = its->explained + its->targets[target] * its->cases + first;
        const index_t *rows = its->rows + first;
        int *out = static_cast<int *>(its->answers) + target * its->answered;
        // Whole lines of the bus for every warp, wherever rows follow each other.
        const int shift = (int)((size_t)(out + rows[0]) / sizeof(int) % 32);
#pragma unroll 4
        for (int b = (int)threadIdx.x - shift; b < cases; b += blockDim.x)
            if (b >= 0) out[rows[b]] = states[b];
    }
}
