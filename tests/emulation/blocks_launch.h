// Launches of the kernels in the source above.
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
