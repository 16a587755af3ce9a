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

extern "C" void launch_write(const char *name, const Run *given, int blocks, int threads) {
    const auto kernel = !std::strcmp(name, "write_single")   ? write_single
                        : !std::strcmp(name, "write_double") ? write_double
                        : !std::strcmp(name, "score_single") ? score_single
                                                             : score_double;
    // Those of the next block may be there by now.
    std::memset(&run, 0, sizeof run);
    for_all(blocks, 1, threads, [&] { kernel(given); });
}
