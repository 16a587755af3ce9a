// What `entries.cu` needs beside `cuda.h`. Only the first thread of a warp uses what a shuffle brings, so the others
// may bring anything.
template <class T> static T __ldg(const T *at) { return *at; }

template <class T> static T __shfl_down_sync(unsigned, T value, int offset) {
    static T slots[1024];
    slots[threadIdx.x] = value;
    __syncwarp();
    const T other = threadIdx.x % 32 + offset < 32 ? slots[threadIdx.x + offset] : value;
    __syncwarp();
    return other;
}
