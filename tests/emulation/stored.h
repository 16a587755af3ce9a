// Exchanges within a warp go through memory: warps are 32 threads here as well.
template <class T> static T __shfl_down_sync(unsigned, T value, int offset, int width) {
    int lane = threadIdx.x % 32;
    self->warp->lanes[lane] = value;
    __syncwarp();
    T other = (T)self->warp->lanes[lane % width + offset < width ? lane + offset : lane];
    __syncwarp();
    return other;
}
// ---
// Launches over all blocks, for the kernels in the source above.
template <class Task>
static void run_blocks(void (*kernel)(const Task *, const int *, int, const Factor *, const Axis *, int *), int blocks,
                       const void *tasks, const int *starts, int count, const void *factors, const void *axes, int *lost) {
    for_all(blocks, 1, THREADS,
            [&] { kernel((const Task *)tasks, starts, count, (const Factor *)factors, (const Axis *)axes, lost); });
}

extern "C" void launch(const char *name, int blocks, const void *tasks, const int *starts, int count, const void *factors,
                       const void *axes, int *lost) {
    const auto run = [&](auto kernel) { run_blocks(kernel, blocks, tasks, starts, count, factors, axes, lost); };
    if (!std::strcmp(name, "scatter_reduce")) run(scatter_reduce);
    else if (!std::strcmp(name, "gather_reduce")) run(gather_reduce);
    else if (!std::strcmp(name, "finish")) run(finish);
    else if (!std::strcmp(name, "settle")) run(settle);
    else run(permute);
}
