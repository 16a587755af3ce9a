
// Launches of the kernels in the source above.
extern "C" void launch(void (*kernel)(int), const Run *given, int first, int blocks_x, int blocks_y, int threads) {
    run = *given;
    for_all(blocks_x, blocks_y, threads, [&] { kernel(first); });
}

extern "C" void launch_write(void (*kernel)(const Run *), const Run *given, int blocks, int threads) {
    // Those of the next block may be there by now.
    std::memset(&run, 0, sizeof run);
    for_all(blocks, 1, threads, [&] { kernel(given); });
}
