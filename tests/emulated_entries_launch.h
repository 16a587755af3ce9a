// A launch of the kernels of `entries.cu`.
extern "C" void launch(const char *name, const Reduction *given, int blocks, int threads) {
    using Kernel = void (*)(const Reduction);
#define KERNEL(name) {#name, name}
    const std::pair<std::string, Kernel> kernels[] = {
        KERNEL(reduce_entries_0), KERNEL(reduce_entries_1), KERNEL(reduce_entries_2), KERNEL(reduce_entries_3),
        KERNEL(reduce_entries_4), KERNEL(reduce_entries_5), KERNEL(reduce_entries_6), KERNEL(reduce_quads_1_1),
        KERNEL(reduce_quads_1_2), KERNEL(reduce_quads_2_1), KERNEL(reduce_quads_2_2), KERNEL(reduce_quads_3_1),
        KERNEL(reduce_quads_3_2), KERNEL(reduce_terms), KERNEL(relay)};
    const Kernel kernel = std::find_if(std::begin(kernels), std::end(kernels), [&](auto &each) {
                              return each.first == name;
                          })->second;
    blockDim.x = threads, gridDim.x = blocks;
    std::barrier<> barrier(threads);
    std::vector<std::unique_ptr<std::barrier<>>> warps;
    for (int n = 0; n < threads; n += 32) warps.push_back(std::make_unique<std::barrier<>>(32));
    std::vector<std::thread> pool;
    for (int n = 0; n < threads; n++)
        pool.emplace_back([&, n] {
            threadIdx.x = n, everyone = &barrier, warp = warps[n / 32].get();
            for (int block = 0; block < blocks; block++) {
                if (n == 0) blockIdx.x = block;
                __syncthreads();
                kernel(*given);
                __syncthreads();
            }
        });
    for (auto &thread : pool) thread.join();
}
