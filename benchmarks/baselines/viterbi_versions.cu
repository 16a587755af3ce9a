// The three GPU versions of Lee and Enev: a launch for each step, a thread for each state, back-pointers stored.
// All: out[j] = max over i of (before[i] + transition of i to j) + emission[j], back[j] = the first i that has it.

// Version 2: thread j reads the transitions to j, [to][from], one after the other; its neighbours read far away.
extern "C" __global__ void thread_for_state(
    const float *before, const float *transition, const float *emission, float *out, int *back, int states) {
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= states) return;
    float best = before[0] + transition[(long long)j * states];
    int from = 0;
    for (int i = 1; i < states; i++) {
        const float sum = before[i] + transition[(long long)j * states + i];
        if (sum > best) best = sum, from = i;
    }
    out[j] = best + emission[j];
    back[j] = from;
}

// Version 3: the matrix is transposed, [from][to], so that neighbouring threads read neighbouring numbers.
extern "C" __global__ void transposed(
    const float *before, const float *transition, const float *emission, float *out, int *back, int states) {
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= states) return;
    float best = before[0] + transition[j];
    int from = 0;
    for (int i = 1; i < states; i++) {
        const float sum = before[i] + transition[(long long)i * states + j];
        if (sum > best) best = sum, from = i;
    }
    out[j] = best + emission[j];
    back[j] = from;
}

// Version 4: threads of a block bring the step before to shared memory, as many numbers at a time as there are threads.
// A second barrier keeps them from overwriting what others have yet to read: the printed loop has none there.
// by_from, by_to: how far apart transitions from neighbouring states, and to neighbouring states, lie.
static __device__ __forceinline__ void cached_step(
    const float *before, const float *transition, const float *emission, float *out, int *back, int states,
    long long by_from, long long by_to) {
    __shared__ float part[THREADS];
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    float best = before[0] + (j < states ? transition[j * by_to] : 0.0f);
    int from = 0;
    for (int first = 0; first < states; first += THREADS) {
        if (first + (int)threadIdx.x < states) part[threadIdx.x] = before[first + threadIdx.x];
        __syncthreads();
        const int count = states - first < THREADS ? states - first : THREADS;
        for (int i = 0; j < states && i < count; i++) {
            const float sum = part[i] + transition[(first + i) * by_from + j * by_to];
            if (sum > best) best = sum, from = first + i;
        }
        __syncthreads();
    }
    if (j >= states) return;
    out[j] = best + emission[j];
    back[j] = from;
}

extern "C" __global__ void cached(
    const float *before, const float *transition, const float *emission, float *out, int *back, int states) {
    cached_step(before, transition, emission, out, back, states, states, 1);
}

// The indices printed in Algorithm 4, transition[prev + nStates * curr]: neighbouring threads read far away, as in
// version 2.
extern "C" __global__ void cached_as_printed(
    const float *before, const float *transition, const float *emission, float *out, int *back, int states) {
    cached_step(before, transition, emission, out, back, states, 1, states);
}
