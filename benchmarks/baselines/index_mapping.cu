// Messages through index mapping tables, as Zheng and Mengshoel (KDD 2013) pass them: a baseline to measure against.
//
// mapping[s * terms + j] is where the j-th of the clique entries lies that agree with entry s of the separator. A block of
// K = blockDim.x threads has `together` (p_a) of them for each of its K / together (p_e) entries.
//
// In the source come first `#define DOUBLE` or nothing, then MOST_THREADS as an enum.

#ifdef DOUBLE
typedef double real;
#else
typedef float real;
#endif

// Their Algorithm 3, reduction: sum a clique table over everything but its separator, and write what the separator changes
// by: its new entries through its old ones, 0 / 0 = 0.
extern "C" __global__ void __launch_bounds__(MOST_THREADS) reduce_mapped(
    const real *clique, const int *mapping, real *separator, real *ratio, int entries, int terms, int together) {
    __shared__ real partial[MOST_THREADS];
    const int me = threadIdx.x, share = me % together;
    const int s = blockIdx.x * (blockDim.x / together) + me / together;
    real sum = 0;
    if (s < entries)
        for (int j = share; j < terms; j += together) sum += clique[mapping[(long long)s * terms + j]];
    partial[me] = sum;
    __syncthreads();
    for (int half = together / 2; half; half /= 2) {
        if (share < half) partial[me] += partial[me + half];
        __syncthreads();
    }
    if (s < entries && share == 0) {
        ratio[s] = separator[s] > 0 ? partial[me] / separator[s] : 0;
        separator[s] = partial[me];
    }
}

// Their Algorithm 4, scattering: multiply a clique table by what its separator has changed by.
extern "C" __global__ void __launch_bounds__(MOST_THREADS) scatter_mapped(
    real *clique, const int *mapping, const real *ratio, int entries, int terms, int together) {
    const int share = threadIdx.x % together;
    const int s = blockIdx.x * (blockDim.x / together) + threadIdx.x / together;
    if (s >= entries) return;
    const real by = ratio[s];
    for (int j = share; j < terms; j += together) clique[mapping[(long long)s * terms + j]] *= by;
}
