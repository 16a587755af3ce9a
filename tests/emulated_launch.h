// Launches over all blocks, for the kernels in the source above.
template <class Kernel> static void for_all(int blocks_x, int blocks_y, int threads, Kernel kernel) {
    blockDim.x = threads, gridDim.x = blocks_x;
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
                kernel();
                __syncthreads();
            }
        });
    for (auto &thread : pool) thread.join();
}

extern "C" void launch(const char *name, const Run *given, int first, int blocks_x, int blocks_y, int threads) {
#ifdef LOGS
    const auto kernel = propagate_few;
#else
    const auto kernel = !std::strcmp(name, "contract_many") ? contract_many
                        : !std::strcmp(name, "rest_many")   ? rest_many
                                                            : propagate_few;
#endif
    run = *given;
    for_all(blocks_x, blocks_y, threads, [&] { kernel(first); });
}

extern "C" void launch_write(const Run *given, int bytes, int blocks, int threads) {
    // Those of the next block may be there by now.
    std::memset(&run, 0, sizeof run);
    for_all(blocks, 1, threads, [&] { bytes == 4 ? write_single(given) : write_double(given); });
}
