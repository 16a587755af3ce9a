// Launches over all blocks, for the kernels in the source above.
extern "C" void launch(int many, const void *run, int first, int count, int blocks_x, int blocks_y, int threads) {
    const Run *given = static_cast<const Run *>(run);
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
                many ? propagate_many(given, first, count) : propagate_few(given, first, count);
                __syncthreads();
            }
        });
    for (auto &thread : pool) thread.join();
}
