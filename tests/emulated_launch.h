// Launches over all blocks, for the kernels in the source above.
extern "C" void launch(const char *name, const Run *given, int first, int blocks_x, int blocks_y, int threads) {
    const auto kernel = !std::strcmp(name, "contract_many") ? contract_many
                        : !std::strcmp(name, "rest_many")   ? rest_many
                                                            : propagate_few;
    run = *given;
    blockDim.x = threads;
    std::barrier<> barrier(threads);
    std::vector<std::unique_ptr<std::barrier<>>> warps;
    for (int n = 0; n < threads; n += 32) warps.push_back(std::make_unique<std::barrier<>>(std::min(32, threads - n)));
    std::vector<std::thread> pool;
    for (int n = 0; n < threads; n++)
        pool.emplace_back([&, n] {
            threadIdx.x = n, everyone = &barrier, warp = warps[n / 32].get();
            for (int block = 0; block < blocks_x * blocks_y; block++) {
                if (n == 0) blockIdx.x = block % blocks_x, blockIdx.y = block / blocks_x;
                __syncthreads();
                kernel(first);
                __syncthreads();
            }
        });
    for (auto &thread : pool) thread.join();
}
