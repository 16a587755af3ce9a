// A launch of the kernels of `entries.cu`.
extern "C" void launch(const char *name, const Reduction *given, int blocks, int threads) {
    using Kernel = void (*)(const Reduction);
    const Kernel over_entries[] = {reduce_entries_0, reduce_entries_1, reduce_entries_2, reduce_entries_3,
                                   reduce_entries_4, reduce_entries_5, reduce_entries_6};
    const Kernel kernel = std::strcmp(name, "reduce_terms") ? over_entries[name[std::strlen(name) - 1] - '0'] : reduce_terms;
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
